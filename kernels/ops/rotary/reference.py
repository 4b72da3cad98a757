"""Rotary position embedding in float64 (Su et al. 2021, arXiv 2104.09864), in the half-split form of GPT-NeoX."""

from __future__ import annotations

import torch


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, H, D]; cos, sin [T, R/2]; float64."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def reference(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(q', k') in float64, differentiable."""
    cos, sin = cache.double()[positions.long()].chunk(2, -1)
    return rotated(q.double(), cos, sin), rotated(k.double(), cos, sin)
