"""The bits of rotary, in plain PyTorch on every device."""

from __future__ import annotations

import torch

from samebits.kernels.ops.rounding import rounded


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, H, D]; cos, sin float32 [T, R/2]."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    cos, sin = cos[:, None, :], sin[:, None, :]
    turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    return torch.cat([rounded(turned, x.dtype), rest], -1)


def contract(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See README.md. q [T, H, D], k [T, G, D], positions [T], cache [P, R]."""
    cos, sin = cache[positions.long()].float().chunk(2, -1)
    return rotate(q, cos, sin), rotate(k, cos, sin)


def contract_backward(
    grad_q: torch.Tensor, grad_k: torch.Tensor, positions: torch.Tensor, cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of q and k: the rotation back."""
    cos, sin = cache[positions.long()].float().chunk(2, -1)
    return rotate(grad_q, cos, -sin), rotate(grad_k, cos, -sin)
