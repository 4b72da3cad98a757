"""The meaning of varlen attention, in float64. T tokens, H query heads, G key heads, D head size."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from samebits.kernels.ops.attention.reference import attend


def reference(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seq_len: int, scale: float) -> Tensor:
    """Arguments of op.attention_varlen: float64 [T, H, D]; differentiable in q, k and v."""
    bounds = cu_seqlens.tolist()
    q, k, v = q.double(), k.double(), v.double()
    parts = [attend(q[a:b], k[a:b], v[a:b], scale) for a, b in pairwise(bounds) if a < b]
    return torch.cat(parts) if parts else q
