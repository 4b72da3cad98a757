"""How far two sets of logprobs are apart.

Legend: N sampled tokens in all.
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
    """Over valid tokens; diff = rollout - trainer. Nothing is indexed by a mask, so that a device is asked once.

    Max, mean, std and k3 are taken in float64 over the valid tokens that are finite on both sides; `nonfinite` counts
    the others, and any of them makes the comparison fail. With no finite token there is nothing to take them over: they
    are NaN, since 0 is the word for success. k3 is the mean of expm1(r) - r with r = trainer - rollout (Schulman).

    Args:
        rollout_N, trainer_N: float32 of one shape on one device.
        valid_N: bool.
    """
    finite_N = rollout_N.isfinite() & trainer_N.isfinite()
    used_N = valid_N & finite_N
    zero = torch.zeros((), dtype=torch.float64, device=rollout_N.device)
    diff_N = torch.where(used_N, rollout_N.double() - trainer_N.double(), zero)
    count = used_N.sum().clamp(min=1)
    mean = diff_N.sum() / count
    variance = torch.where(used_N, (diff_N - mean).square(), zero).sum() / count
    k3 = (torch.expm1(-diff_N) + diff_N).sum() / count
    largest = torch.cat([diff_N.abs().flatten(), zero[None]]).max()
    counts = [valid_N.sum(), (differs(rollout_N, trainer_N) & valid_N).sum(), (valid_N & ~finite_N).sum()]
    sizes_4 = torch.stack([largest, mean, variance.sqrt(), k3]).masked_fill(~used_N.any(), torch.nan)
    values = torch.cat([torch.stack([one.double() for one in counts]), sizes_4]).tolist()
    return GapStats(
        tokens=int(values[0]),
        nonzero=int(values[1]),
        nonfinite=int(values[2]),
        max=values[3],
        mean=values[4],
        std=values[5],
        k3=values[6],
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
