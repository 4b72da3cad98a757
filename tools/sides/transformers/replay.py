"""Rollout routing replay (R3, arXiv 2510.11370): a transformers model takes the engine's experts, weighted by itself.

Scores are computed anew from the trainer's own router and gathered at the engine's ids, in the engine's order, so the
router still learns.

Legend: T token rows of one pass, M rows of all sequences one after the other, L routed layers, R experts per token,
X experts.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Rows = Callable[[], torch.Tensor]


def routers(model: Any) -> list[Any]:
    """The router of every routed layer, in order."""
    return [module for module in model.modules() if type(module).__name__ == "Qwen3MoeTopKRouter"]


@contextmanager
def replayed(model: Any, id_MLR: torch.Tensor, rows: Rows) -> Iterator[None]:
    """Inside, every router chooses the experts given.

    Args:
        id_MLR: int64; the order of experts is kept.
        rows: index into M of every token row of the pass that is running.

    Raises:
        UserError: a model without routers that are known here, or routing of another number of layers or experts.
    """
    found = routers(model)
    expected = (len(found), found[0].top_k) if found else (0, 0)
    if not found or tuple(id_MLR.shape[1:]) != expected:
        raise UserError(
            "routing to replay",
            f"{id_MLR.shape[1]} layers of {id_MLR.shape[2]} experts, the trainer has {expected[0]} of {expected[1]}",
            "replay routing of the same model (known routers: Qwen3-MoE)",
        )
    for layer, router in enumerate(found):
        if "forward" in vars(router):
            raise UserError("routing replay", "the router's forward is replaced already", "undo the other patch first")
        router.forward = _forward(router, id_MLR[:, layer], rows)
    try:
        yield
    finally:
        for router in found:
            del router.forward


def _forward(router: Any, id_MR: torch.Tensor, rows: Rows) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]]:
    def forward(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As Qwen3MoeTopKRouter.forward, with the given ids in place of its own top-k."""
        logits_TX = F.linear(hidden.reshape(-1, hidden.shape[-1]), router.weight)
        id_TR = id_MR[rows()].to(logits_TX.device)
        score_TR = logits_TX.softmax(dim=-1, dtype=torch.float).gather(1, id_TR)
        if router.norm_topk_prob:
            score_TR = score_TR / score_TR.sum(dim=-1, keepdim=True)
        return logits_TX, score_TR.to(logits_TX.dtype), id_TR

    return forward


@contextmanager
def chosen(model: Any) -> Iterator[list[list[torch.Tensor]]]:
    """Inside, notes the ids [T, R] that every router chooses itself: one list per layer, one entry per pass."""
    found = routers(model)
    notes: list[list[torch.Tensor]] = [[] for _ in found]
    handles = [
        router.register_forward_hook(lambda _m, _i, out, own=own: own.append(out[2].detach().cpu().to(torch.int64)))
        for router, own in zip(found, notes, strict=True)
    ]
    try:
        yield notes
    finally:
        for handle in handles:
            handle.remove()
