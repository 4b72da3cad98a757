"""The bits of silu_mul, in plain PyTorch on every device."""

from __future__ import annotations

import torch

from samebits.kernels.ops.device_exp import device_exp
from samebits.kernels.ops.rounding import rounded


def contract(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """See README.md. gate, up [..., I], one dtype."""
    g = gate.float()
    y = g / (1.0 + device_exp(-g)) * up.float()
    return rounded(y, gate.dtype)


def contract_backward(grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of gate and up."""
    g, u, dy = gate.float(), up.float(), grad.float()
    sg = 1.0 / (1.0 + torch.exp(-g))
    return (dy * u * (sg * (1.0 + g * (1.0 - sg)))).to(gate.dtype), (dy * (g / (1.0 + torch.exp(-g)))).to(up.dtype)
