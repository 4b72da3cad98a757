"""Other readings of "the logprob of the sampled token", in float64 from the side's own logits.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from samebits.tools.sides.scoring.logprob import keep_top

if TYPE_CHECKING:
    from samebits.tools.schema.passes import Reading

COLUMNS = ("logprob", "total", "slope", "count")


ROWS = 256
"""Rows worked on at a time: float64 copies of the whole vocabulary are large."""


def columns(
    logits_RV: torch.Tensor, targets_R: torch.Tensor, reading: Reading, reported_R: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The columns of `_some`, for any number of rows."""
    parts = [
        _some(logits_RV[a : a + ROWS], targets_R[a : a + ROWS], reading, reported_R[a : a + ROWS])
        for a in range(0, len(targets_R), ROWS)
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in COLUMNS}


def _some(
    logits_RV: torch.Tensor, targets_R: torch.Tensor, reading: Reading, reported_R: torch.Tensor
) -> dict[str, torch.Tensor]:
    """What is needed to recognise a cause of meaning, per row, float64.

    logprob: log p(target) under the reading; total: logsumexp(logits / T) over the whole vocabulary; slope: d logprob /
    d(1/T) before any cut, that is target logit minus mean logit; count: how many of the most probable tokens hold the
    mass exp(logprob - reported), when `reading.count` (else NaN).
    """
    wide_RV = logits_RV.double()
    scaled_RV = wide_RV / reading.temperature
    total_R = torch.logsumexp(scaled_RV, dim=-1)
    target_R = wide_RV.gather(1, targets_R[:, None])[:, 0]
    uncut_R = target_R / reading.temperature - total_R
    probability_RV = (scaled_RV - total_R[:, None]).exp()
    slope_R = target_R - (probability_RV * wide_RV).sum(-1)
    logprob_R = uncut_R
    if reading.top_k > 0 or reading.top_p < 1:
        kept_RV = keep_top(scaled_RV.float(), reading.top_k, reading.top_p).isneginf().logical_not()
        logprob_R = uncut_R - (probability_RV * kept_RV).sum(-1).log()
    count_R = torch.full_like(uncut_R, torch.nan)
    if reading.count:
        mass_RV = probability_RV.sort(dim=-1, descending=True).values.cumsum(-1)
        wanted_R1 = (uncut_R - reported_R.double()).exp()[:, None]
        above_R1 = torch.searchsorted(mass_RV, wanted_R1).clamp(max=mass_RV.shape[1] - 1)
        below_R1 = (above_R1 - 1).clamp(min=0)
        near_R1 = (mass_RV.gather(1, below_R1) - wanted_R1).abs() < (mass_RV.gather(1, above_R1) - wanted_R1).abs()
        count_R = torch.where(near_R1, below_R1, above_R1)[:, 0].double() + 1
    return {"logprob": logprob_R, "total": total_R, "slope": slope_R, "count": count_R}
