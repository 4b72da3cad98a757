"""Weights as the engine's operators see them, and its module tree. Functions here run inside the worker.

Linears on CPU keep a packed copy and drop (or no longer read) their parameter; it is read back by feeding the identity.
Packed experts are read back by packing index patterns and inverting the permutation.

Legend: N outputs, K inputs of a linear; E experts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.schema.artifacts.weights import ModuleView, SideModules, SideWeights
from samebits.tools.sides.scoring.views import weight_view
from samebits.tools.sides.vllm.control import CONTROL

if TYPE_CHECKING:
    from collections.abc import Iterator

EXPERTS = ("w13_weight", "w2_weight")
DIGIT = 7
"""Bits of an index that a bfloat16 holds exactly, with room to spare."""


def read_back(worker: Any) -> SideWeights:
    """Every weight, row by row."""
    notes: list[str] = []
    views = [weight_view(path, name, weight, source) for path, name, weight, source in operands(worker, notes)]
    return SideWeights(role="rollout", weights=tuple(views), notes=tuple(notes))


def operands(worker: Any, notes: list[str]) -> Iterator[tuple[str, str, torch.Tensor, str]]:
    """(module path, parameter name, weight, how it was read), one weight at a time; what cannot be read is noted."""
    for path, module in worker.model_runner.get_model().named_modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            weight, source = parameter.detach(), "parameter"
            if name == "weight" and packed_linear(module):
                weight, source = through_identity(module), "read back through the packed linear"
                if zeros := int((weight == 0).sum()):
                    notes.append(f"{path}.weight: {zeros} zeros whose sign the packed linear hides")
            elif name in EXPERTS and (isa := expert_isa(module)) is not None:
                weight, source = unpacked(weight, isa), f"read back from the packed experts ({isa})"
            elif not parameter.numel():
                notes.append(f"{path}.{name}: emptied by the engine, not read back")
                continue
            yield path, name, weight, source


def packed_linear(module: Any) -> bool:
    """Whether the operator reads a packed copy and not the parameter (an input embedding reads the parameter)."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    embedding = isinstance(module, VocabParallelEmbedding) and not isinstance(module, ParallelLMHead)
    return getattr(module, "cpu_linear", None) is not None and not embedding


def through_identity(module: Any) -> torch.Tensor:
    """[N, K]: each output of the operator for a one-hot input is exactly one weight."""
    weight = module.weight
    inputs = (
        weight.shape[1] if weight.dim() == 2 else getattr(module, "input_size_per_partition", None) or module.input_size
    )
    eye_KK = torch.eye(inputs, dtype=weight.dtype)
    out_KN: torch.Tensor = module.cpu_linear(eye_KK, weight if weight.numel() else None, None)
    return out_KN.t().contiguous()


def expert_isa(module: Any) -> str | None:
    """Layout of prepacked experts on CPU; None: not prepacked."""
    kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
    experts = getattr(kernel, "fused_experts", None)
    if experts is None or module.w13_weight.device.type != "cpu" or getattr(experts, "_use_zentorch", False):
        return None
    return getattr(experts, "isa", None)


def unpacked(packed_ENK: torch.Tensor, isa: str) -> torch.Tensor:
    """Undo `cpu_prepack_moe_weight`: a permutation inside each expert, found by packing the indices digit by digit."""
    from vllm import _custom_ops as ops

    one = (1, *packed_ENK.shape[1:])
    size = packed_ENK[0].numel()
    index, order = torch.arange(size), torch.zeros(size, dtype=torch.int64)
    for shift in range(0, size.bit_length(), DIGIT):
        digit = ((index >> shift) & ((1 << DIGIT) - 1)).to(packed_ENK.dtype).view(one).contiguous()
        order |= ops.cpu_prepack_moe_weight(digit, isa).flatten().to(torch.int64) << shift
    assert bool((order.sort().values == index).all()), "prepacking experts is no permutation in this vLLM"
    plain = torch.empty_like(packed_ENK).view(len(packed_ENK), -1)
    plain[:, order] = packed_ENK.reshape(len(packed_ENK), -1)
    return plain.view(packed_ENK.shape)


def watch_modules(worker: Any) -> None:
    """Count module calls from now on."""
    calls: dict[str, int] = {}
    CONTROL.module_calls = calls

    def note(path: str) -> Any:
        def hook(*_: object) -> None:
            calls[path] = calls.get(path, 0) + 1

        return hook

    CONTROL.module_hooks = [
        module.register_forward_pre_hook(note(path)) for path, module in worker.model_runner.get_model().named_modules()
    ]


def modules(worker: Any) -> SideModules:
    """Modules with the number and order of their calls since `watch_modules`."""
    for handle in CONTROL.module_hooks:
        handle.remove()
    calls, CONTROL.module_hooks = CONTROL.module_calls, []
    order = {path: place for place, path in enumerate(calls)}
    views = [
        ModuleView(path=path, kind=type(module).__name__, calls=calls.get(path, 0), order=order.get(path, -1))
        for path, module in worker.model_runner.get_model().named_modules()
    ]
    return SideModules(
        role="rollout", modules=tuple(sorted(views, key=lambda view: view.order if view.order >= 0 else len(views)))
    )
