"""The bits of rms_norm, in plain PyTorch on every device."""

from __future__ import annotations

import torch

from samebits.kernels.ops.lanes import lane_sum, lanes_of, sqrt, unit_of
from samebits.kernels.ops.rounding import rounded

MOST_LANES = 256


def layout(width: int, dtype: torch.dtype) -> tuple[int, int]:
    """(unit, lanes) of a row: part of the contract."""
    unit = unit_of(dtype)
    return unit, lanes_of(width, unit, MOST_LANES)


def contract(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """See README.md. x, residual [..., D], weight [D], one dtype."""
    width = x.shape[-1]
    s = x.float() if residual is None else x.float() + residual.float()
    total = lane_sum(s * s, *layout(width, x.dtype))
    r = 1.0 / sqrt(
        total / total.new_full((), width) + eps
    )  # a tensor: PyTorch on CUDA divides by a number through its inverse
    y = s * r[..., None]
    y = y if weight is None else y * weight.float()
    y = rounded(y, x.dtype)
    return y if residual is None else (y, rounded(s, x.dtype))


def contract_backward(
    grad: torch.Tensor, s: torch.Tensor, weight: torch.Tensor | None, eps: float, grad_s: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Gradients of s (= of x = of residual) and of the weight, from the rounded s.

    Args:
        grad: of y, [..., D].
        grad_s: of the returned sum, or None.
    """
    wide, g = s.float(), grad.float()
    r = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    gw = g if weight is None else g * weight.float()
    normed = wide * r
    ds = r * (gw - normed * (gw * normed).mean(-1, keepdim=True))
    ds = ds if grad_s is None else ds + grad_s.float()
    dw = None if weight is None else (g * normed).flatten(0, -2).sum(0).to(weight.dtype)
    return ds.to(s.dtype), dw
