"""Paged attention: `samebits::attention`, functional, with fake. Rollout only: it has no gradient (attention_varlen
has)."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.kernels.ops.attention.checks import check
from samebits.kernels.ops.attention.contract import contract
from samebits.kernels.ops.ran import ran
from samebits.kernels.ops.register import dispatched


@dispatched("attention")
def attention_op(
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
    """See README.md."""
    check(q, k_cache, v_cache, block_table, cu_seqlens_q, seq_lens, scale)
    if q.is_cuda:
        from samebits.kernels.ops.attention.dispatch import run

        return run(q, k_cache, v_cache, block_table, cu_seqlens_q, seq_lens, max_query_len, max_seq_len, scale)
    ran("attention contract")
    return contract(q, k_cache, v_cache, block_table, cu_seqlens_q, seq_lens, max_query_len, max_seq_len, scale)


@attention_op.register_fake
def _(
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
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


def attention(
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
    """Causal attention of the last query tokens of each sequence over its paged keys, by the contract in README.md.

    q [T, H, D]; k_cache, v_cache [pages, slots, G, D] with any strides between pages, slots and heads; block_table
    [B, pages of a
    sequence], cu_seqlens_q [B + 1], seq_lens [B], all int32. seq_lens counts the query tokens too, whose keys are
    already in the cache.
    max_query_len and max_seq_len are upper bounds known on the host. Returns [T, H, D] in the dtype of q.
    """
    out: Tensor = attention_op(
        q, k_cache, v_cache, block_table, cu_seqlens_q, seq_lens, max_query_len, max_seq_len, scale
    )
    return out
