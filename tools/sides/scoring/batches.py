"""A rollout cut into the forward passes of a PyTorch side.

Legend: B rows of a batch, L its length, T = B * L token rows, R rows whose logits are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from samebits.tools.capture.rows import PassRows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from samebits.tools.sides.protocol import Sequence

Layout = Literal["single", "padded", "packed"]
PAD_TOKEN = 0
"""What right padding holds: causal attention keeps it from every real row."""


@dataclass(slots=True)
class Batch:
    """One forward pass."""

    ids_BL: torch.Tensor
    """int64."""
    positions_BL: torch.Tensor
    """int64; packed rows start again at 0 for each sequence."""
    mask_BL: torch.Tensor | None
    """int64, 1 for real tokens; None when there is no padding."""
    lengths: list[int]
    """Fed tokens of each sequence, in order."""
    rows: PassRows
    """On CPU. `head_R` names the rows whose next-token distribution is asked for."""
    targets_R: torch.Tensor
    """int64, the token that row R is asked about."""
    out_R: torch.Tensor
    """int64, index of that token among all sampled tokens of the rollout."""


def cut(
    sequences: list[Sequence], layout: Layout, per_batch: int, *, reverse: bool = False, row_shift: int = 0
) -> Iterator[Batch]:
    """Yield the passes over all sequences that have something sampled.

    Args:
        per_batch: sequences per pass when padded or packed; single is always one.
        reverse: from the last sequence to the first.
        row_shift: ask this many rows later (a wrong reading, used to recognise shifted logprobs); rows outside the
            sequence are left out.
    """
    starts = [0]
    for sequence in sequences:
        starts.append(starts[-1] + len(sequence.sampled))
    order = [i for i, sequence in enumerate(sequences) if sequence.sampled]
    order = order[::-1] if reverse else order
    size = 1 if layout == "single" else max(1, per_batch)
    for first in range(0, len(order), size):
        chosen = order[first : first + size]
        yield _batch(chosen, sequences, starts, layout, row_shift)


def _batch(chosen: list[int], sequences: list[Sequence], starts: list[int], layout: Layout, row_shift: int) -> Batch:
    fed = [sequences[i].tokens for i in chosen]
    lengths = [len(tokens) for tokens in fed]
    width = max(lengths) if layout == "padded" else sum(lengths)
    bases = [j * width for j in range(len(fed))] if layout == "padded" else [sum(lengths[:j]) for j in range(len(fed))]
    total = width * len(fed) if layout == "padded" else width
    ids_T = torch.full((total,), PAD_TOKEN, dtype=torch.int64)
    sequence_T = torch.full((total,), -1, dtype=torch.int32)
    position_T = torch.zeros(total, dtype=torch.int64)
    head, targets, out = [], [], []
    for i, base, tokens in zip(chosen, bases, fed, strict=True):
        end = base + len(tokens)
        ids_T[base:end] = torch.tensor(tokens)
        sequence_T[base:end] = i
        # Padding goes on counting: its rows are never read, and the model must not take it for a packed sequence.
        stop = base + width if layout == "padded" else end
        position_T[base:stop] = torch.arange(stop - base)
        for k, position in enumerate(sequences[i].scored):
            if 0 <= position + row_shift < len(tokens):
                head.append(base + position + row_shift)
                targets.append(sequences[i].sampled[k])
                out.append(starts[i] + k)
    shape = (len(fed), width) if layout == "padded" else (1, total)
    mask_BL = (sequence_T >= 0).to(torch.int64).view(shape) if layout == "padded" and min(lengths) < width else None
    head_R = torch.tensor(head, dtype=torch.int64)
    rows = PassRows(sequence_T, position_T.to(torch.int32), shape, head_R)
    return Batch(
        ids_T.view(shape),
        position_T.view(shape),
        mask_BL,
        lengths,
        rows,
        torch.tensor(targets, dtype=torch.int64),
        torch.tensor(out, dtype=torch.int64),
    )
