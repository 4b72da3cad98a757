"""The figures of a batch in one reduction on its device.

Legend: N tokens of any shape, flattened.
"""

from __future__ import annotations

import torch

from samebits.tools.schema.artifacts.gap import GapStats


def figures(rollout_N: torch.Tensor, trainer_N: torch.Tensor, mask_N: torch.Tensor) -> GapStats:
    """Like `tools.measure.gap.stats`, without any indexing by mask, so that a device is asked once.

    Args:
        rollout_N, trainer_N: float32 on one device.
        mask_N: bool.
    """
    finite_N = rollout_N.isfinite() & trainer_N.isfinite()
    used_N = mask_N & finite_N
    differs_N = rollout_N.contiguous().view(torch.int32) != trainer_N.contiguous().view(torch.int32)
    zero = torch.zeros((), dtype=torch.float64, device=rollout_N.device)
    diff_N = torch.where(used_N, rollout_N.double() - trainer_N.double(), zero)
    count = used_N.sum().clamp(min=1)
    mean = diff_N.sum() / count
    spread_N = torch.where(used_N, (diff_N - mean).square(), zero)
    # k3 is the mean of expm1(r) - r with r = trainer - rollout = -diff (Schulman).
    k3 = (torch.expm1(-diff_N) + diff_N).sum() / count
    largest = torch.cat([diff_N.abs().flatten(), zero[None]]).max()
    counts = [mask_N.sum(), (differs_N & mask_N).sum(), (mask_N & ~finite_N).sum()]
    # 0 is the word for success: nothing compared is NaN.
    figures_4 = torch.stack([largest, mean, (spread_N.sum() / count).sqrt(), k3]).masked_fill(~used_N.any(), torch.nan)
    values = torch.cat([torch.stack([c.double() for c in counts]), figures_4]).tolist()
    return GapStats(
        tokens=int(values[0]),
        nonzero=int(values[1]),
        nonfinite=int(values[2]),
        max=values[3],
        mean=values[4],
        std=values[5],
        k3=values[6],
    )
