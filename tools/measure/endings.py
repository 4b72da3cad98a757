"""Differences that sit at the end of sequences only: the end token, and padding counted as sampled.

Legend: N sampled tokens in all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.tools.schema.artifacts.gap import NotNumerics

if TYPE_CHECKING:
    import torch

    from samebits.tools.measure.causes import Gap

NATS = 0.05
"""Median diff at the ends from which it is no rounding."""
APART = 50.0
"""How many times larger the diff at the ends is than anywhere else."""
FEWEST_ENDS = 2


def find(gap: Gap) -> NotNumerics | None:
    """End or pad tokens, when removing them leaves next to nothing.

    An end token: only the last counted token of sequences differs by nats. Padding: only a tail of one repeated token
    does. Sequences without such an ending do not speak against it; a single one speaks for nothing.
    """
    size_N = (gap.data.logprob_N.double() - gap.trainer_N.double()).abs()
    bad_N = size_N.isfinite().logical_not()
    size_N = size_N.masked_fill(bad_N, float("inf"))
    valid_N = gap.data.valid_N
    last, tails = _ends(gap)
    for places, words in (
        (last, "the last counted token of the sequences"),
        (tails, "a tail of one repeated token (padding counted as sampled)"),
    ):
        if len(places) < FEWEST_ENDS:
            continue
        ends_N = valid_N.new_zeros(len(valid_N))
        for i in places.values():
            ends_N[i] = True
        rest_N = valid_N & ~ends_N
        answer = _answer(gap, size_N, ends_N, rest_N, words)
        if answer is not None:
            return answer
    return None


def _ends(gap: Gap) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Per sequence: the index of its last valid token; the indices of a tail of equal tokens (two or more)."""
    last: dict[int, list[int]] = {}
    tails: dict[int, list[int]] = {}
    start = 0
    valid = gap.data.valid_N.tolist()
    for i, sequence in enumerate(gap.data.sequences):
        places = [start + k for k in range(len(sequence.sampled)) if valid[start + k]]
        if len(places) > 1:
            last[i] = places[-1:]
            token = sequence.sampled[places[-1] - start]
            other = next(
                (k for k in range(len(places) - 1, -1, -1) if sequence.sampled[places[k] - start] != token), -1
            )
            tail = places[other + 1 :]
            if 1 < len(tail) < len(places):
                # The first of them is the end token itself, when padding repeats it.
                tails[i] = tail
        start += len(sequence.sampled)
    return last, tails


def _answer(
    gap: Gap, size_N: torch.Tensor, ends_N: torch.Tensor, rest_N: torch.Tensor, words: str
) -> NotNumerics | None:
    if not bool(rest_N.any()):
        return None
    at_ends, elsewhere = size_N[ends_N], float(size_N[rest_N].max())
    large = at_ends > max(NATS, APART * elsewhere)
    if float(large.double().mean()) < 0.5 or int(large.sum()) < FEWEST_ENDS:
        return None
    reported = gap.data.logprob_N[ends_N][large]
    zero = " (reported as exactly 0)" if bool((reported == 0).all()) else ""
    finite = at_ends[at_ends.isfinite()]
    before = float(finite.max()) if len(finite) else float("inf")
    return NotNumerics(
        cause="end_token",
        explanation=f"only {words} differ by nats: {int(large.sum())} of {len(at_ends)} such tokens{zero}",
        residual=elsewhere,
        before=before,
    )
