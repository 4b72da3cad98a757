"""The fast implementation of varlen attention on CUDA."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.kernels.ops.attention import dispatch as paged
from samebits.kernels.ops.attention_varlen.contract import table_of


def run(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seq_len: int, scale: float) -> Tensor:
    """Arguments of op.attention_varlen: [T, H, D] in the dtype of q."""
    lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).int()
    one_page = k[None], v[None]
    if not paged.fits_hopper(q, *one_page):
        table = table_of(cu_seqlens, max_seq_len)
        return paged.run(q, k[:, None], v[:, None], table, cu_seqlens, lengths, max_seq_len, max_seq_len, scale)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if q.shape[0]:
        no_table = lengths[:, None]
        paged.prefill_hopper(
            q,
            *one_page,
            no_table,
            cu_seqlens,
            lengths,
            max_seq_len,
            scale,
            out,
            leave=0,
            cu_seqlens_k=cu_seqlens,
        )
    return out
