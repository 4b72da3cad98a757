"""The bits of normed_rotary: those of rms_norm, then of rotary."""

from __future__ import annotations

import torch

from samebits.kernels.ops.rms_norm import contract as rms_norm
from samebits.kernels.ops.rotary import contract as rotary


def contract(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    cache: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See README.md. q [T, H, D], k [T, G, D], weights [D], positions [T], cache [P, D]."""
    normed_q, normed_k = rms_norm.contract(q, q_weight, eps), rms_norm.contract(k, k_weight, eps)
    assert isinstance(normed_q, torch.Tensor)
    assert isinstance(normed_k, torch.Tensor)
    return rotary.contract(normed_q, normed_k, positions, cache)
