"""Which experts the engine chose, by capture of its routers (every vLLM), or as the engine itself returns it.

Legend: T token rows of one pass, M rows of all sequences one after the other, L routed layers, R experts per token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.schema.errors import UserError
from samebits.tools.sides.vllm import control
from samebits.tools.sides.vllm.install import install

if TYPE_CHECKING:
    from samebits.tools.sides.protocol import RolloutData

ROUTES: list[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]] = []
"""(layer, sequence_T, position_T, id_TR) of every call since `watch`: this process's worker."""


def watch(worker: Any, prompts: list[list[int]]) -> int:
    """Inside the worker: note every choice of experts from now on; the number of routed layers.

    Args:
        prompts: of the requests samebits.0, samebits.1, ... that will be run, each computed whole (no prefix cache).
    """
    install(worker)
    ROUTES.clear()
    runners = [
        module
        for module in worker.model_runner.get_model().modules()
        if hasattr(getattr(module, "router", None), "select_experts")
    ]
    routers = list({id(module.router): module.router for module in runners}.values())
    for layer, router in enumerate(routers):
        vars(router).pop("select_experts", None)
        router.select_experts = _noted(router.select_experts, layer)
    control.begin(worker, prompts, [len(prompt) for prompt in prompts], False, None, ())
    return len(routers)


def _noted(method: Any, layer: int) -> Any:
    def select_experts(*args: Any, **kwargs: Any) -> Any:
        weights, ids = method(*args, **kwargs)
        if control.CONTROL.rows is not None:
            rows = control.CONTROL.rows.current()
            count = len(rows.sequence_T)
            ROUTES.append((layer, rows.sequence_T, rows.position_T, ids[:count].detach().cpu().to(torch.int64)))
        return weights, ids

    return select_experts


def noted(worker: Any) -> list[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Inside the worker: stop, and hand over what was noted."""
    control.end(worker, None, False)
    for module in worker.model_runner.get_model().modules():
        if hasattr(getattr(module, "router", None), "select_experts"):
            vars(module.router).pop("select_experts", None)
    return list(ROUTES)


def by_row(
    routes: list[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]], data: RolloutData, layers: int
) -> torch.Tensor:
    """int64 [M, L, R], the fed tokens of every sequence one after the other, in the engine's own order of experts.

    Raises:
        UserError: a row that no pass computed (served from the prefix cache), or one computed twice with other experts.
    """
    lengths = [len(sequence.tokens) for sequence in data.sequences]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    width = routes[0][3].shape[-1] if routes else 1
    id_MLR = torch.full((int(offsets[-1]), layers, width), -1, dtype=torch.int64)
    for layer, sequence_T, position_T, id_TR in routes:
        used_T = sequence_T >= 0
        at_T = offsets[sequence_T[used_T].long()] + position_T[used_T].long()
        new_TR, old_TR = id_TR[used_T], id_MLR[at_T, layer]
        if bool(((old_TR >= 0) & (old_TR != new_TR)).any()):
            raise UserError("the engine's routing", "a row was computed twice with other experts", "report this engine")
        id_MLR[at_T, layer] = new_TR
    if bool((id_MLR < 0).any()):
        missing = int((id_MLR < 0).any(-1).any(-1).sum())
        raise UserError(
            "the engine's routing",
            f"{missing} of {len(id_MLR)} token rows were never computed",
            "set enable_prefix_caching = false in [rollout.engine]",
        )
    return id_MLR


def returned(outputs: list[Any]) -> torch.Tensor | None:
    """The same, as the engine returns it with `enable_return_routed_experts`; None: it does not."""
    parts = [getattr(output.outputs[0], "routed_experts", None) for output in outputs]
    if any(part is None for part in parts):
        return None
    return torch.cat([torch.as_tensor(part).to(torch.int64) for part in parts])


def same(captured_MLR: torch.Tensor, returned_MLR: torch.Tensor | None) -> str:
    """Words on the two ways, where both exist.

    Raises:
        UserError: they differ.
    """
    if returned_MLR is None:
        return "captured from the routers; this engine returns no routing"
    if captured_MLR.shape != returned_MLR.shape or not bool((captured_MLR == returned_MLR).all()):
        raise UserError(
            "the engine's routing", "captured and returned experts differ", "report this engine: replay nothing"
        )
    return "captured from the routers, equal to what the engine returns"
