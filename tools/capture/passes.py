"""The rows of one pass, ready for selection: which are kept, and their keys.

Legend: T token rows of the pass, R head rows, K kept rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from samebits.tools.capture.layout import Grid, Layout, find

if TYPE_CHECKING:
    from samebits.tools.capture.rows import PassRows


def keys_of(sequence: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """int64 keys (sequence << 32 | position), on CPU; -1 for rows of no sequence."""
    seq, pos = (t.detach().to("cpu", torch.int64) for t in (sequence, position))
    return torch.where(seq >= 0, (seq << 32) | pos, torch.full_like(seq, -1))


def rows_of(keys: torch.Tensor) -> torch.Tensor:
    """int32 [K, 2] (sequence, position) of keys."""
    return torch.stack([keys >> 32, keys & 0xFFFFFFFF], dim=1).to(torch.int32)


@dataclass(slots=True)
class Chosen:
    """Rows of one kind (all tokens, or head rows) in one pass."""

    name: str
    """Unique in the run: taps with the same list of names share one row set."""
    keys: torch.Tensor
    """int64, all rows of this kind; -1: no row of a sequence."""
    kept: torch.Tensor | None
    """int64 indices of the rows that are recorded; None: all."""
    kept_keys: torch.Tensor
    total: int
    """Rows of this kind, and"""
    count: int
    """how many of them are kept."""
    number: int = 0
    """The pass."""
    _on: dict[torch.device, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, keys: torch.Tensor, sequences: torch.Tensor | None, number: int = 0) -> Chosen:
        """Select the rows of the wanted sequences (None: of all)."""
        keep = keys >= 0
        if sequences is not None:
            keep &= torch.isin(keys >> 32, sequences)
        if bool(keep.all()):
            return cls(name, keys, None, keys, len(keys), len(keys), number)
        kept = keep.nonzero().view(-1)
        return cls(name, keys, kept, keys[kept], len(keys), len(kept), number)

    def pick(self, rows: torch.Tensor) -> torch.Tensor:
        """The kept rows of a [rows, columns] matrix; they may share its memory."""
        if self.kept is None:
            return rows
        if rows.device not in self._on:
            self._on[rows.device] = self.kept.to(rows.device)
        return rows.index_select(0, self._on[rows.device])


@dataclass(slots=True)
class Pass:
    """One forward pass."""

    number: int
    grid: Grid
    all: Chosen
    head: Chosen
    calls: dict[str, int] = field(default_factory=dict)
    """Calls of each module so far."""
    operators: dict[tuple[str, int, str], int] = field(default_factory=dict)
    """Calls of each operator inside one module call so far."""
    layouts: dict[tuple[int, ...], Layout | None] = field(default_factory=dict)
    """Layouts found in this pass, without what is known from earlier passes."""
    clock: int = 0
    """Numbers everything that is taken, in time."""

    @classmethod
    def begin(cls, number: int, rows: PassRows, sequences: torch.Tensor | None) -> Pass:
        """Copy what the side's buffers hold now."""
        keys_T = keys_of(rows.sequence_T, rows.position_T)
        head_R = None if rows.head_R is None else rows.head_R.detach().to("cpu", torch.int64).clone()
        tokens = Chosen.of(f"{number}", keys_T, sequences, number)
        head = tokens if head_R is None else Chosen.of(f"{number}h", keys_T[head_R], sequences, number)
        grid = Grid(len(keys_T), rows.batch, None if head_R is None else len(head_R))
        return cls(number, grid, tokens, head)

    def next_call(self, module: str) -> int:
        """Number of this call of a module."""
        call = self.calls.get(module, 0)
        self.calls[module] = call + 1
        return call

    def layout(self, shape: tuple[int, ...], like: Layout | None) -> Layout | None:
        """See layout.find."""
        if shape not in self.layouts:
            self.layouts[shape] = find(shape, self.grid)
        found = self.layouts[shape]
        if like is None or not like.sure or (found is not None and found.sure and not found.head):
            return found
        return find(shape, self.grid, like)

    def tick(self) -> int:
        """The next place in time."""
        self.clock += 1
        return self.clock
