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

CERTAIN = -12.0
"""log10 of the chance that full float32 values would all fall on the coarser grid; above it nothing is said."""
PLACES = range(1, 7)


def find(gap: Gap) -> NotNumerics | None:
    """The coarsest grid on which every reported logprob lies while the trainer's do not.

    The residual is taken against the trainer's logprobs rounded in the same way: zero when rounding is all there is.
    """
    used_N = gap.used_N
    rollout_M, trainer_M = gap.data.logprob_N[used_N], gap.trainer_N[used_N]
    if len(rollout_M) == 0 or bool((rollout_M == trainer_M).all()):
        return None
    for name, through, chance in _grids():
        on_grid = bool((through(rollout_M) == rollout_M).all())
        # Repeated values (a greedy 0.0) are one observation.
        distinct_M = rollout_M.unique()
        if on_grid and float(chance(distinct_M).sum()) < CERTAIN and not bool((through(trainer_M) == trainer_M).all()):
            rounded_M = through(trainer_M).double()
            before = float((rollout_M.double() - trainer_M.double()).abs().max())
            residual = float((rollout_M.double() - rounded_M).abs().max())
            rest = "" if residual == 0 else "; the rest is not explained by it"
            return NotNumerics(
                cause="transport_rounding", explanation=f"every reported logprob is a {name} value, the trainer's are not{rest}",
                residual=residual, before=before,
            )
    return None


def _grids() -> list[tuple[str, Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]]:
    def cast(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x_M: x_M.to(dtype).float()

    def even(bits: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x_M: torch.where(x_M == 0, 0.0, -bits * math.log10(2.0)).double()

    def decimal(places: int) -> Callable[[torch.Tensor], torch.Tensor]:
        # Through Python's own rounding: the text "-7.1235" read back as float32.
        return lambda x_M: torch.tensor([float(f"{value:.{places}f}") for value in x_M.tolist()], dtype=torch.float64).float()

    def spacing(places: int) -> Callable[[torch.Tensor], torch.Tensor]:
        # Chance that a float32 is nearest to a multiple of 10^-places: its own spacing against the grid's.
        return lambda x_M: ((torch.nextafter(x_M.abs(), torch.tensor(torch.inf)) - x_M.abs()).double() * 10**places).clamp(max=1).log10()

    grids = [("bfloat16", cast(torch.bfloat16), even(16)), ("float16", cast(torch.float16), even(13))]
    words = "decimal with {} place{}"
    decimals = [(words.format(p, "" if p == 1 else "s"), decimal(p), spacing(p)) for p in PLACES]
    return [decimals[0], *grids, *decimals[1:]]
