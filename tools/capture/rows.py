"""Which token each row of a forward pass is. A side implements RowMap; capture and edits read it.

Legend: T token rows of one pass in the model's own order; R rows that reach the head (logits rows).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(slots=True, frozen=True)
class PassRows:
    """The rows of one forward pass."""

    sequence_T: torch.Tensor
    """int32, index of the rollout's sequence; -1: padding or a row of no sequence, never recorded."""
    position_T: torch.Tensor
    """int32, absolute position in its sequence."""
    batch: tuple[int, int] | None
    """(B, L) when the model sees [B, L, ...] tensors with B * L == T; None: flat [T, ...] (or [1, T, ...])."""
    head_R: torch.Tensor | None
    """int64 indices into T of the rows that logits have; None: all T."""


class RowMap(Protocol):
    """Known to the side: asked once per forward pass, while its buffers still hold."""

    def current(self) -> PassRows:
        """Rows of the pass that is running now."""
        ...
