"""What the operator replaces, in plain PyTorch: scaled_dot_product_attention in the dtype of the inputs, one
sequence at a time; on CUDA its flash kernel, as a trainer runs it and as vLLM's FlashAttention is written: both round
the weights of the values to the dtype of the inputs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

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
        found = (_flash if q.is_cuda else _masked)(q[rows].transpose(0, 1)[None], k, v, scale)
        out[rows] = found[0].transpose(0, 1)
    return out


def _masked(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q [1, H, T, D], the last T of N positions; k and v [1, G, N, D]."""
    tokens, length = q.shape[2], k.shape[2]
    seen = torch.arange(length)[None, :] <= torch.arange(length - tokens, length)[:, None]
    mask = None if tokens == 1 else seen
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)


def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """The same. A mask in full would leave the choice to PyTorch between cuDNN and plain float32 products."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    mask = None if q.shape[2] == 1 else causal_lower_right(q.shape[2], k.shape[2])
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
