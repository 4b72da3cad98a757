"""The rotation as transformers computes it: cos and sin in the dtype of q, products and sum rounded to it."""

from __future__ import annotations

import torch


def replaced(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula of apply_rotary_pos_emb, for heads on dim 1."""
    width = cache.shape[-1]
    cos, sin = (half.repeat(1, 2)[:, None, :].to(q.dtype) for half in cache[positions.long()].chunk(2, -1))

    def one(x: torch.Tensor) -> torch.Tensor:
        turned, rest = x[..., :width], x[..., width:]
        a, b = turned.chunk(2, -1)
        return torch.cat([turned * cos + torch.cat([-b, a], -1) * sin, rest], -1)

    return one(q), one(k)
