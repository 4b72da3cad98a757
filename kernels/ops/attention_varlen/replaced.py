"""What the operator replaces: scaled_dot_product_attention in the dtype of the inputs, one sequence at a time."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional


def replaced(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seq_len: int, scale: float) -> Tensor:
    """Arguments of op.attention_varlen: [T, H, D] in the dtype of q."""
    bounds = cu_seqlens.tolist()
    parts = []
    for a, b in pairwise(bounds):
        if a < b:
            one_q, one_k, one_v = (t[a:b].transpose(0, 1)[None] for t in (q, k, v))
            out = functional.scaled_dot_product_attention(
                one_q, one_k, one_v, is_causal=True, scale=scale, enable_gqa=True
            )
            parts.append(out[0].transpose(0, 1))
    return torch.cat(parts) if parts else q
