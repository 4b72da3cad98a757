"""Which sequences a diff looks at in full, so that the stored tensors of any model fit the budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from samebits.tools.align.taps import Taps
    from samebits.tools.sides.protocol import RolloutData

ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "int32": 4, "int64": 8, "float64": 8, "bool": 1, "uint8": 1}


def bytes_per_row(*captures: Taps) -> int:
    """What one token row takes when every rowed tap of these captures is stored."""
    return max(sum(tap.columns * ELEMENT_BYTES.get(tap.dtype, 4) for tap in taps.rowed) for taps in captures)


def choose(data: RolloutData, differing_N: torch.Tensor, row_bytes: int, budget_bytes: int) -> tuple[int, ...]:
    """Sequences to store: those with differing tokens first, longest first among the first few, until the budget is
    used.

    The longest differing sequence is always wanted (long contexts show what short ones hide); one sequence is taken
    even when it alone is over the budget, and the capture then refuses with the sizes.
    """
    start, lengths, differs = 0, [], []
    for sequence in data.sequences:
        count = len(sequence.sampled)
        lengths.append(len(sequence.tokens))
        differs.append(bool(differing_N[start : start + count].any()))
        start += count
    order = sorted(range(len(lengths)), key=lambda i: (not differs[i], -lengths[i]))
    rows_left = budget_bytes // max(1, row_bytes)
    chosen: list[int] = []
    for i in order:
        if not chosen or lengths[i] <= rows_left:
            chosen.append(i)
            rows_left -= lengths[i]
    return tuple(sorted(chosen))


def tokens_of(data: RolloutData, sequences: tuple[int, ...]) -> torch.Tensor:
    """bool [N]: the sampled tokens of these sequences."""
    import torch

    wanted = set(sequences)
    parts = [torch.full((len(sequence.sampled),), i in wanted) for i, sequence in enumerate(data.sequences)]
    return torch.cat(parts)
