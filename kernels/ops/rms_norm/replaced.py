"""RMSNorm as transformers writes it: the sum and the normed row are rounded to the dtype on the way."""

from __future__ import annotations

import torch


def replaced(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """The formula of LlamaRMSNorm and Qwen3RMSNorm, after a residual addition in the dtype."""
    s = x if residual is None else x + residual
    wide = s.float()
    y = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(s.dtype)
    y = y if weight is None else weight * y
    return y if residual is None else (y, s)
