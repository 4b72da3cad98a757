"""Token rows of one forward pass, sequence after sequence.

Legend: B rows of the batch, L tokens of such a row, T token rows (B * L), S sequences, W blocks of a paged cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from samebits.kernels.adapters.errors import PatchError

PLAIN = "pass full sequences: position_ids that start at 0 and go up by one in each sequence, no cache, no left padding"


@dataclass(slots=True)
class Pack:
    """Where each sequence lies among the T token rows of this pass."""

    position_T: torch.Tensor
    """int64, on the model's device."""
    starts: tuple[int, ...]
    """First row of each sequence, and T at the end (S + 1 numbers)."""
    plans: dict[Any, Any] = field(default_factory=dict)
    """What an operator prepared once for all layers of this pass."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence."""
        return tuple(b - a for a, b in zip(self.starts, self.starts[1:], strict=False))

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """First and one-past-last row of each sequence."""
        return tuple(zip(self.starts, self.starts[1:], strict=False))

    def cu_seqlens(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """`starts` as int32 [S + 1]."""
        return torch.tensor(self.starts, dtype=torch.int32, device=device)

    def pages(self, block: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """A paged cache for these sequences: blocks in a row, none shared.

        Args:
            block: tokens of one block.

        Returns:
            Starts int32 [S + 1], lengths int32 [S], block table int32 [S, W], slots int64 [T], on CPU.
        """
        needed = [-(-length // block) for length in self.lengths]
        table_SW = torch.zeros(len(needed), max(needed), dtype=torch.int32)
        slots: list[torch.Tensor] = []
        first = 0
        for row, (count, length) in enumerate(zip(needed, self.lengths, strict=True)):
            table_SW[row, :count] = torch.arange(first, first + count, dtype=torch.int32)
            slots.append(torch.arange(length) + first * block)
            first += count
        return self.cu_seqlens(), torch.tensor(self.lengths, dtype=torch.int32), table_SW, torch.cat(slots)


def read(position_ids: torch.Tensor, mask_BL: torch.Tensor | None) -> Pack:
    """Read the sequences from the positions, as transformers itself does for packed rows: position 0 starts a sequence.

    Args:
        position_ids: int [B, L].
        mask_BL: 1 for tokens, 0 for padding on the right; None: no padding. Padding rows are computed and mean nothing.

    Raises:
        PatchError: positions that do not go up by one inside a sequence, or padding on the left.
    """
    position_BL = position_ids
    if mask_BL is not None:
        real = mask_BL.bool()
        if not bool(real[:, 0].all()) or bool((real[:, 1:] & ~real[:, :-1]).any()):
            raise PatchError("attention_mask", "has padding before tokens", "pad on the right")
        along = torch.arange(position_BL.shape[1], device=position_BL.device)
        position_BL = torch.where(real, position_BL, along)
        if bool((position_BL != along).any()):
            raise PatchError("position_ids", "do not count each padded row from 0", PLAIN)
    position_T = position_BL.reshape(-1).to(torch.int64)
    begins = position_T == 0
    steady = position_T[1:] == position_T[:-1] + 1
    if position_T.numel() == 0 or not bool(begins[0]) or not bool((steady | begins[1:]).all()):
        raise PatchError("position_ids", "hold a sequence that does not start at 0 or skips a position", PLAIN)
    first_of_row = torch.arange(position_BL.shape[0], device=position_T.device) * position_BL.shape[1]
    if not bool(begins[first_of_row].all()):
        raise PatchError("position_ids", "continue a sequence in another row of the batch", PLAIN)
    starts = [*begins.nonzero()[:, 0].tolist(), position_T.numel()]
    return Pack(position_T, tuple(starts))
