"""normed_rotary in float64."""

from __future__ import annotations

import torch

from samebits.kernels.ops.rotary.reference import reference as rotary


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    cache: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(q', k') in float64."""

    def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.double()
        return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()

    return rotary(normed(q, q_weight), normed(k, k_weight), positions, cache)
