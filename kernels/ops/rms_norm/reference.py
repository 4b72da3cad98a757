"""RMSNorm in float64 (Zhang and Sennrich 2019, arXiv 1910.07467)."""

from __future__ import annotations

import torch


def reference(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """y = s / sqrt(mean(s^2) + eps) * weight with s = x + residual; float64, differentiable."""
    s = x.double() if residual is None else x.double() + residual.double()
    y = s / torch.sqrt(s.square().mean(-1, keepdim=True) + eps)
    y = y if weight is None else y * weight.double()
    return y if residual is None else (y, s)
