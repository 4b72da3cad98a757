"""normed_rotary as transformers computes it: norm rounded before the weight, products of the rotation rounded."""

from __future__ import annotations

import torch

from samebits.kernels.ops.rms_norm.replaced import replaced as norm
from samebits.kernels.ops.rotary.replaced import replaced as rotary


def replaced(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    cache: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(q', k') in the dtype of q."""
    normed_q, normed_k = norm(q, q_weight, eps), norm(k, k_weight, eps)
    assert isinstance(normed_q, torch.Tensor)
    assert isinstance(normed_k, torch.Tensor)
    return rotary(normed_q, normed_k, positions, cache)
