"""How far two sets of logprobs are apart.

Legend: N sampled tokens in all, M valid ones.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from samebits.tools.schema.artifacts.gap import GapStats, SequenceGap, WorstToken

if TYPE_CHECKING:
    from samebits.tools.sides.protocol import Sequence

NEIGHBOURS = (-2, -1, 0, 1, 2)


def ulps(a_N: torch.Tensor, b_N: torch.Tensor) -> torch.Tensor:
    """Distance of two float32 tensors in units in the last place, int64; -0.0 and 0.0 are one apart."""

    def ordered(x_N: torch.Tensor) -> torch.Tensor:
        bits_N = x_N.contiguous().view(torch.int32).long()
        # Negative floats count down from -1 as their magnitude grows, so that -0.0 is just below 0.0.
        return torch.where(bits_N >= 0, bits_N, -1 - (bits_N & 0x7FFFFFFF))

    return (ordered(a_N) - ordered(b_N)).abs()


def differs(a_N: torch.Tensor, b_N: torch.Tensor) -> torch.Tensor:
    """Where the float32 bit patterns differ, bool."""
    assert a_N.dtype == b_N.dtype == torch.float32
    return a_N.contiguous().view(torch.int32) != b_N.contiguous().view(torch.int32)


def stats(rollout_N: torch.Tensor, trainer_N: torch.Tensor, valid_N: torch.Tensor) -> GapStats:
    """Over valid tokens; diff = rollout - trainer.

    Max, mean, std and k3 are taken in float64 over the valid tokens that are finite on both sides; `nonfinite` counts
    the others, and any of them makes the comparison fail. With no finite token there is nothing to take them over: they
    are NaN, since 0 is the word for success. k3 is the mean of expm1(r) - r with r = trainer - rollout (Schulman).
    """
    nonzero = int((differs(rollout_N, trainer_N) & valid_N).sum())
    finite_N = rollout_N.isfinite() & trainer_N.isfinite()
    used_N = valid_N & finite_N
    diff_M = rollout_N[used_N].double() - trainer_N[used_N].double()
    some = len(diff_M) > 0
    return GapStats(
        tokens=int(valid_N.sum()),
        nonzero=nonzero,
        nonfinite=int((valid_N & ~finite_N).sum()),
        max=float(diff_M.abs().max()) if some else math.nan,
        mean=float(diff_M.mean()) if some else math.nan,
        std=float(diff_M.std(correction=0)) if some else math.nan,
        k3=float((torch.expm1(-diff_M) + diff_M).mean()) if some else math.nan,
    )


def per_sequence(
    sequences: list[Sequence], rollout_N: torch.Tensor, trainer_N: torch.Tensor, valid_N: torch.Tensor
) -> tuple[SequenceGap, ...]:
    """One row per sequence."""
    bad_N = differs(rollout_N, trainer_N) & valid_N
    diff_N = (rollout_N.double() - trainer_N.double()).abs()
    rows, start = [], 0
    for i, sequence in enumerate(sequences):
        part = slice(start, start + len(sequence.sampled))
        start = part.stop
        finite_N = diff_N[part].isfinite() & valid_N[part]
        first = int(bad_N[part].int().argmax()) if bool(bad_N[part].any()) else None
        rows.append(
            SequenceGap(
                sequence=i,
                prompt_tokens=len(sequence.prompt),
                tokens=int(valid_N[part].sum()),
                nonzero=int(bad_N[part].sum()),
                max=float(diff_N[part][finite_N].max()) if bool(finite_N.any()) else math.nan,
                first_position=None if first is None else len(sequence.prompt) + first,
            )
        )
    return tuple(rows)


def worst_tokens(
    sequences: list[Sequence], rollout_N: torch.Tensor, trainer_N: torch.Tensor, valid_N: torch.Tensor, count: int = 10
) -> tuple[WorstToken, ...]:
    """The valid tokens that differ most, nonfinite ones first, each with the diff of its neighbours."""
    bad_N = differs(rollout_N, trainer_N) & valid_N
    diff_N = rollout_N.double() - trainer_N.double()
    size_N = torch.where(diff_N.isfinite(), diff_N.abs(), torch.inf).masked_fill(~bad_N, -1)
    distance_N = ulps(rollout_N, trainer_N)
    where = [(i, k) for i, sequence in enumerate(sequences) for k in range(len(sequence.sampled))]
    order = size_N.argsort(descending=True, stable=True)[:count].tolist()
    worst = []
    for n in order:
        if not bad_N[n]:
            break
        i, k = where[n]
        around = tuple(
            float(diff_N[n + d]) if 0 <= k + d < len(sequences[i].sampled) and bool(valid_N[n + d]) else float("nan")
            for d in NEIGHBOURS
        )
        worst.append(
            WorstToken(
                sequence=i,
                position=len(sequences[i].prompt) + k,
                token=sequences[i].sampled[k],
                rollout=float(rollout_N[n]),
                trainer=float(trainer_N[n]),
                ulps=int(distance_N[n]) if math.isfinite(size_N[n]) else -1,
                around=around,
            )
        )
    return tuple(worst)
