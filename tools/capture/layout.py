"""Finds the token rows of a tensor: every tap is kept as a matrix [rows, columns], one row per token.

The rule, first match wins. T token rows of the pass, (B, L) its batch when the model sees one, R rows that reach the
head:

1. weights (storage of a parameter or buffer) have no token rows; the caller asks for none.
2. batched pass: [B, L, ...]; then [B, ..., L, ...] with one further axis of length L, the last one only if no other
   is; then [L, B, ...]; then [B*n, ..., L, ...] (heads folded into the batch); then [1, L, ...] (the same for every
   row of the batch).
3. [T, ...]; then [1, T, ...]; then one axis of length T anywhere, the last one only if no other is.
4. [R, ...], [1, R, ...], [R, 1, ...]: logits and what follows them. Only where R is not T.

With no candidate the tensor has no token rows: it is kept as a whole. A finding is not `sure` where the shape allows
another: [T, ..., T, ...] (as many heads as tokens), and every tensor of a pass of one token row. Then the axis that
was found for the same site in another pass decides (`like`), and a sure finding later overrules.

Columns are the other axes in their order, flattened. So [B, H, L, D] and [T, H * D] give the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


_IN_ORDER = tuple(tuple(range(rank)) for rank in range(65))


@dataclass(slots=True, frozen=True)
class Grid:
    """What is known of the shape of a pass."""

    tokens: int
    batch: tuple[int, int] | None
    head: int | None
    """Number of head rows; None: all tokens."""


@dataclass(slots=True, frozen=True)
class Layout:
    """How the rows lie in a tensor."""

    split: tuple[int, ...] | None
    """Shape to view the tensor as first."""
    axes: tuple[int, ...]
    """Token axes in front (one, or batch and length), then the others."""
    lead: int
    repeat: int = 1
    """The rows stand for this many equal copies, one per row of the batch."""
    head: bool = False
    """Rows are head rows, not all token rows."""
    sure: bool = True

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """Token axes first; shares memory when the tensor allows the split."""
        return (tensor if self.split is None else tensor.view(self.split)).permute(self.axes)

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """[rows, columns]; a view where the layout allows it."""
        seen = tensor if self.split is None else tensor.reshape(self.split)
        if self.axes != _IN_ORDER[len(self.axes)]:
            seen = seen.permute(self.axes)
        shape = seen.shape
        count = shape[0] if self.lead == 1 else shape[0] * shape[1]
        flat = seen.reshape(count, -1 if seen.numel() else prod(shape[self.lead :]))
        return flat if self.repeat == 1 else flat.repeat(self.repeat, 1)


def find(shape: tuple[int, ...], grid: Grid, like: Layout | None = None) -> Layout | None:
    """The layout of a tensor of this shape, or None when it has no token rows.

    Args:
        like: what was found for the same site in an earlier pass.
    """
    if not shape:
        return None
    if grid.tokens == 1:
        return Layout((1, prod(shape)), (0, 1), 1, sure=False)
    found = _batched(shape, *grid.batch) if grid.batch is not None else None
    found = found or _flat(shape, grid.tokens)
    if found is None or not found.sure:
        again = _like(shape, grid.tokens, like)
        found = again or found
    if found is None and grid.head is not None and grid.head != grid.tokens:
        found = _head(shape, grid.head)
    return found


def _front(rank: int, *first: int) -> tuple[int, ...]:
    return (*first, *(axis for axis in range(rank) if axis not in first))


def _only(shape: tuple[int, ...], size: int, start: int) -> int | None:
    """The one axis of this size from `start` on; the last axis counts only when no other has it."""
    inner = [axis for axis in range(start, len(shape) - 1) if shape[axis] == size]
    if len(inner) == 1:
        return inner[0]
    last = len(shape) - 1
    return last if not inner and last >= start and shape[last] == size else None


def _batched(shape: tuple[int, ...], batch: int, length: int) -> Layout | None:
    rank = len(shape)
    if rank < 2:
        return None
    if shape[:2] == (batch, length):
        return Layout(None, _front(rank, 0, 1), 2)
    if shape[0] == batch and (axis := _only(shape, length, 1)) is not None:
        return Layout(None, _front(rank, 0, axis), 2)
    if shape[:2] == (length, batch):
        return Layout(None, _front(rank, 1, 0), 2)
    if (
        batch > 1
        and rank >= 3
        and shape[0] % batch == 0
        and shape[0] != batch
        and (axis := _only(shape, length, 1)) is not None
    ):
        split = (batch, shape[0] // batch, *shape[1:])
        return Layout(split, _front(rank + 1, 0, axis + 1), 2)
    if batch > 1 and shape[:2] == (1, length):
        return Layout((length, prod(shape[2:])), (0, 1), 1, repeat=batch)
    return None


def _flat(shape: tuple[int, ...], tokens: int) -> Layout | None:
    rank = len(shape)
    if shape[0] == tokens:
        return Layout(None, _front(rank, 0), 1, sure=tokens not in shape[1:-1])
    if rank >= 2 and shape[:2] == (1, tokens):
        return Layout(None, _front(rank, 1), 1)
    axis = _only(shape, tokens, 1)
    return None if axis is None else Layout(None, _front(rank, axis), 1)


def _like(shape: tuple[int, ...], tokens: int, like: Layout | None) -> Layout | None:
    if (
        like is None
        or not like.sure
        or like.lead != 1
        or like.head
        or like.split is not None
        or len(like.axes) != len(shape)
    ):
        return None
    return like if shape[like.axes[0]] == tokens else None


def _head(shape: tuple[int, ...], head: int) -> Layout | None:
    rank = len(shape)
    if rank <= 3 and shape[0] == head and (rank < 3 or shape[1] == 1 or head != 1):
        return Layout(None, _front(rank, 0), 1, head=True, sure=head > 1)
    if rank >= 2 and shape[:2] == (1, head):
        return Layout(None, _front(rank, 1), 1, head=True, sure=head > 1)
    return None
