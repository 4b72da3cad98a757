"""What the operator replaces, in plain PyTorch: scaled_dot_product_attention in the dtype of the inputs, one
sequence at a time."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from samebits.kernels.ops.attention.reference import keys_of


def replaced(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    max_query_len: int,
    max_seq_len: int,
    scale: float,
) -> Tensor:
    """Arguments of op.attention: [T, H, D] in the dtype of q."""
    out = torch.zeros_like(q)
    starts, lengths = cu_seqlens_q.tolist(), seq_lens.tolist()
    for b, length in enumerate(lengths):
        rows = slice(starts[b], starts[b + 1])
        if rows.start == rows.stop:
            continue
        k, v = (keys_of(cache, block_table, b, length).transpose(0, 1)[None] for cache in (k_cache, v_cache))
        tokens = rows.stop - rows.start
        seen = (
            torch.arange(length, device=q.device)[None, :]
            <= torch.arange(length - tokens, length, device=q.device)[:, None]
        )
        mask = None if tokens == 1 else seen
        found = functional.scaled_dot_product_attention(
            q[rows].transpose(0, 1)[None], k, v, attn_mask=mask, scale=scale, enable_gqa=True
        )
        out[rows] = found[0].transpose(0, 1)
    return out
