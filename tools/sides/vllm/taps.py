"""Taps that stay in a compiled or captured graph: an opaque operator digests rows into a buffer made beforehand.

Hooks put in after the weights are loaded are traced with the modules; each calls `samebits::tap`, which the compiler
neither sees into nor removes, since it writes to a buffer. After every pass the buffers are read with the row map.

By default only what the compiler has to lay down in memory anyway is tapped: inputs and outputs of linears, attention
and experts, and the embedding. A tap elsewhere (a norm, an activation, the residual stream) makes it round a value that
it would have kept in float32, so the logprobs change: seen on CPU, on every token. A module object used at several
places (a shared rotary embedding) is left out: the graph cannot tell its calls apart.

Legend: T token rows of a pass.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.capture.places import Place
from samebits.tools.diff.digest import digest_rows
from samebits.tools.sides.vllm.control import CONTROL

if TYPE_CHECKING:
    from samebits.tools.capture.recorder import Recorder

INPUTS, OUTPUTS = 4, 2
"""Ports per module that have a buffer."""
PORTS = INPUTS + OUTPUTS
BUFFER = "_samebits_tap_{}"


@dataclass(slots=True)
class Seen:
    """What the operator was called with when it last ran outside a graph replay."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    order: int


@dataclass(slots=True)
class Taps:
    """All taps of one worker."""

    paths: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    buffers: dict[int, torch.Tensor] = field(default_factory=dict)
    """int64 [most rows of a pass, 2] by tap number."""
    seen: dict[int, Seen] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    clock: int = 0

    def place(self, number: int) -> Place:
        """The place of a tap: number = module * PORTS + port."""
        module, port = divmod(number, PORTS)
        return Place(self.paths[module], f"in{port}" if port < INPUTS else f"out{port - INPUTS}")

    def clear(self) -> None:
        """Before a pass: zeros mean that a tap did not run (no digest is zero but by a chance of 2^-128)."""
        for number in self.seen:
            self.buffers[number].zero_()

    def collect(self, recorder: Recorder, rows: int) -> None:
        """After a pass of `rows` token rows (padding included): hand their digests to the recorder.

        Their order is negative, in the order of tracing: before the logits, which the recorder itself takes.
        """
        last = max((seen.order for seen in self.seen.values()), default=0)
        for number, seen in self.seen.items():
            place = self.place(number)
            digests_T2 = self.buffers[number][:rows].to("cpu", copy=True)
            if bool(digests_T2.any(1).all()):
                like = torch.empty_strided(seen.shape, seen.strides, dtype=seen.dtype, device="meta")
                recorder.digests(place, digests_T2, self.kinds[number // PORTS], seen.order - last - 1, like)
            else:
                self.left_out[str(place.site)] = "has other rows than the pass has tokens, or did not run in it"
        recorder.sink.untapped.update(self.left_out)


TAPS = Taps()
_LIBRARY = torch.library.Library("samebits", "FRAGMENT")
_LIBRARY.define("tap(Tensor x, Tensor(a!) digests, int number, int order) -> ()")


def _tap(x: torch.Tensor, digests: torch.Tensor, number: int, order: int) -> None:
    rows = x.shape[0]
    TAPS.seen[number] = Seen(x.dtype, tuple(x.shape), tuple(x.stride()), order)
    digests[:rows] = digest_rows(x.reshape(rows, -1))


def _tap_fake(x: torch.Tensor, digests: torch.Tensor, number: int, order: int) -> None:
    return None


_LIBRARY.impl("tap", _tap, "CompositeExplicitAutograd")
torch.library.register_fake("samebits::tap", _tap_fake, lib=_LIBRARY)


@torch._dynamo.assume_constant_result
def _next_order() -> int:
    """Counts taps in the order in which they are traced."""
    TAPS.clock += 1
    return TAPS.clock


def digest(modules: tuple[str, ...] | None) -> str:
    """Names a tap plan and this code: compiled graphs with other taps must not come out of the compile cache."""
    code = Path(__file__).read_bytes()
    return hashlib.sha256(repr(modules).encode() + code).hexdigest()[:16]


def put_taps(worker: Any, modules: tuple[str, ...] | None) -> None:
    """Hook the modules of a loaded and not yet compiled model (inside the worker)."""
    model = worker.model_runner.get_model()
    most = worker.vllm_config.scheduler_config.max_num_batched_tokens
    device = next(model.parameters()).device
    uses: dict[int, int] = {}
    for _, module in model.named_modules(remove_duplicate=False):
        uses[id(module)] = uses.get(id(module), 0) + 1
    for path, module in model.named_modules():
        if path == "" or not (_laid_down(module) if modules is None else path in modules):
            continue
        if uses[id(module)] > 1:
            TAPS.left_out[path] = (
                f"one module object at {uses[id(module)]} places: its calls cannot be told apart in a graph"
            )
            continue
        _hook(module, path, most, device)
    CONTROL.taps = TAPS


def _laid_down(module: torch.nn.Module) -> bool:
    """Whether inputs and outputs of this module are those of kernels the compiler calls and does not write itself."""
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    experts = "MoE" in type(module).__name__ and hasattr(module, "quant_method")
    inside = (LinearBase, AttentionLayerBase, VocabParallelEmbedding)
    return experts or (isinstance(module, inside) and not isinstance(module, ParallelLMHead))


def _hook(module: torch.nn.Module, path: str, most: int, device: torch.device) -> None:
    base = len(TAPS.paths) * PORTS
    TAPS.paths.append(path)
    TAPS.kinds.append(type(module).__name__)
    for port in range(PORTS):
        TAPS.buffers[base + port] = torch.zeros(most, 2, dtype=torch.int64, device=device)
        module.register_buffer(BUFFER.format(port), TAPS.buffers[base + port], persistent=False)

    def note(owner: torch.nn.Module, values: Any, first: int, count: int) -> None:
        tensors = [
            value for value in (values if isinstance(values, tuple) else (values,)) if isinstance(value, torch.Tensor)
        ]
        for port in range(min(count, len(tensors))):
            if tensors[port].dim() >= 2:
                buffer = getattr(owner, BUFFER.format(first + port))
                torch.ops.samebits.tap(tensors[port], buffer, base + first + port, _next_order())

    def before(owner: torch.nn.Module, args: tuple[Any, ...]) -> None:
        note(owner, args, 0, INPUTS)

    def after(owner: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        note(owner, output, INPUTS, OUTPUTS)

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after)
