"""The meaning of paged attention, in float64. T query tokens, H query heads, G key heads, D head size, N keys."""

from __future__ import annotations

import torch
from torch import Tensor


def keys_of(cache: Tensor, block_table: Tensor, b: int, length: int) -> Tensor:
    """The first `length` keys (or values) of sequence b: [N, G, D]."""
    slots = cache.shape[1]
    pages = block_table[b, : -(-length // slots)].long()
    return cache[pages].flatten(0, 1)[:length]


def attend(q_THD: Tensor, k_NGD: Tensor, v_NGD: Tensor, scale: float) -> Tensor:
    """Causal attention of the last T of N positions, in the dtype of its inputs: [T, H, D]."""
    tokens, heads, _ = q_THD.shape
    length, key_heads, _ = k_NGD.shape
    group = heads // key_heads
    k_HND, v_HND = (t.repeat_interleave(group, 1).transpose(0, 1) for t in (k_NGD, v_NGD))
    scores_HTN = q_THD.transpose(0, 1) @ k_HND.transpose(1, 2) * scale
    position_T = torch.arange(length - tokens, length, device=q_THD.device)
    hidden_TN = torch.arange(length, device=q_THD.device)[None, :] > position_T[:, None]
    return (scores_HTN.masked_fill(hidden_TN, float("-inf")).softmax(-1) @ v_HND).transpose(0, 1)


def reference(
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
    """Arguments of op.attention: float64 [T, H, D]."""
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    starts, lengths = cu_seqlens_q.tolist(), seq_lens.tolist()
    for b, length in enumerate(lengths):
        rows = slice(starts[b], starts[b + 1])
        if rows.start < rows.stop:
            k, v = (keys_of(cache, block_table, b, length).double() for cache in (k_cache, v_cache))
            out[rows] = attend(q[rows].double(), k, v, scale)
    return out
