"""The bits of silu_mul: on CPU plain PyTorch, on CUDA the plainest Triton kernel (contract_triton.py)."""

from __future__ import annotations

import torch


def contract(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """See README.md. gate, up [..., I], one dtype."""
    if gate.is_cuda:
        from samebits.kernels.ops.silu_mul.contract_triton import contract_cuda

        return contract_cuda(gate, up)
    g = gate.float()
    y = g / (1.0 + torch.exp(-g)) * up.float()
    return torch.where(torch.isnan(y), torch.nan, y).to(gate.dtype)


def contract_backward(grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of gate and up."""
    g, u, dy = gate.float(), up.float(), grad.float()
    sg = 1.0 / (1.0 + torch.exp(-g))
    return (dy * u * (sg * (1.0 + g * (1.0 - sg)))).to(gate.dtype), (dy * (g / (1.0 + torch.exp(-g)))).to(up.dtype)
