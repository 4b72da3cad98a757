"""Logprobs rounded on their way: through bfloat16, float16, or a decimal text of a few places.

Legend: M valid tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from samebits.tools.schema.artifacts.gap import NotNumerics

if TYPE_CHECKING:
    from collections.abc import Callable

    from samebits.tools.measure.causes import Gap

    Each = Callable[[torch.Tensor], torch.Tensor]

CERTAIN = -12.0
"""log10 of the chance that full float32 values would all fall on the coarser grid; above it nothing is said."""
PLACES = range(1, 7)


def find(gap: Gap) -> NotNumerics | None:
    """The coarsest grid on which every reported logprob lies while the trainer's do not.

    The residual is what lies outside the interval of values that round to the reported one: next to zero when
    rounding is all there is.
    """
    used_N = gap.used_N
    rollout_M, trainer_M = gap.data.logprob_N[used_N], gap.trainer_N[used_N]
    if len(rollout_M) == 0 or bool((rollout_M == trainer_M).all()):
        return None
    for name, through, chance, step in _grids():
        on_grid = bool((through(rollout_M) == rollout_M).all())
        # Repeated values (a greedy 0.0) are one observation.
        distinct_M = torch.tensor(sorted(set(rollout_M.tolist())), dtype=torch.float32)
        if on_grid and float(chance(distinct_M).sum()) < CERTAIN and not bool((through(trainer_M) == trainer_M).all()):
            diff_M = (rollout_M.double() - trainer_M.double()).abs()
            before = float(diff_M.max())
            residual = float((diff_M - step(rollout_M) / 2).clamp(min=0).max())
            return NotNumerics(
                cause="transport_rounding",
                explanation=f"every reported logprob is a {name} value, the trainer's are not",
                residual=residual,
                before=before,
            )
    return None


def _grids() -> list[tuple[str, Each, Each, Each]]:
    """Name, rounding, log10 of the chance to be on the grid unrounded, spacing of the grid at a value; coarse to
    fine.
    """
    halves = [_half("bfloat16", torch.bfloat16, 8), _half("float16", torch.float16, 11)]
    decimals = [_decimal(places) for places in PLACES]
    return [decimals[0], *halves, *decimals[1:]]


def _half(name: str, dtype: torch.dtype, bits: int) -> tuple[str, Each, Each, Each]:
    def chance(x_M: torch.Tensor) -> torch.Tensor:
        # float32 has 24 significant bits: the last 24 - bits would have to be zero.
        return torch.where(x_M == 0, 0.0, (bits - 24) * math.log10(2.0)).double()

    def step(x_M: torch.Tensor) -> torch.Tensor:
        return torch.ldexp(torch.ones_like(x_M), torch.frexp(x_M).exponent - bits).double()

    return name, lambda x_M: x_M.to(dtype).float(), chance, step


def _decimal(places: int) -> tuple[str, Each, Each, Each]:
    def through(x_M: torch.Tensor) -> torch.Tensor:
        # Python's own rounding: the text "-7.1235" read back as float32.
        return torch.tensor([float(f"{value:.{places}f}") for value in x_M.tolist()], dtype=torch.float64).float()

    def chance(x_M: torch.Tensor) -> torch.Tensor:
        # That a float32 is the nearest to a multiple of 10^-places: its own spacing against the grid's.
        own_M = torch.nextafter(x_M.abs(), torch.tensor(torch.inf)) - x_M.abs()
        relative_M: torch.Tensor = own_M.double() * float(10**places)
        return relative_M.clamp(max=1).log10()

    name = f"decimal with {places} place{'' if places == 1 else 's'}"
    return name, through, chance, lambda x_M: torch.full_like(x_M, 10.0**-places, dtype=torch.float64)
