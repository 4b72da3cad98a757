"""What the attention operator accepts; anything else is an error that names the thing and the reason."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.kernels.ops.attention.layout import uncovered
from samebits.kernels.ops.check import refuse, require_float, require_same

NAME = "attention"


def check(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    scale: float,
) -> None:
    """Raise ValueError for shapes, dtypes, devices or strides outside the contract; reads no value of a tensor."""
    require_float(NAME, "q", q)
    require_same(NAME, q=q, k_cache=k_cache, v_cache=v_cache)
    if q.dim() != 3:
        refuse(NAME, f"q must be [tokens, heads, head size]; got {tuple(q.shape)}")
    if k_cache.dim() != 4 or k_cache.shape != v_cache.shape:
        refuse(NAME, f"caches must be [pages, slots, key heads, head size]; got {_caches(k_cache, v_cache)}")
    _, heads, size = q.shape
    _, slots, key_heads, width = k_cache.shape
    if width != size:
        refuse(NAME, f"q has head size {size} but the caches are {_caches(k_cache, v_cache)}")
    if why := uncovered(size, heads, key_heads):
        refuse(NAME, why)
    if slots <= 0 or slots & (slots - 1):
        refuse(NAME, f"pages of {slots} slots; a power of two is needed")
    if q.numel() and (q.stride(2) != 1 or q.stride(1) != size):
        refuse(NAME, f"q has strides {q.stride()}: heads must lie side by side")
    if k_cache.stride(3) != 1 or v_cache.stride(3) != 1:
        refuse(NAME, "the last dim of the caches must be contiguous")
    for name, value in (("block_table", block_table), ("cu_seqlens_q", cu_seqlens_q), ("seq_lens", seq_lens)):
        if value.dtype != torch.int32:
            refuse(NAME, f"{name} has dtype {value.dtype}; int32 is needed")
        if value.device != q.device:
            refuse(NAME, f"{name} is on {value.device} but q is on {q.device}")
        if value.numel() and value.stride(-1) != 1:
            refuse(NAME, f"{name} must be contiguous in its last dim")
    batch = seq_lens.shape[0]
    if block_table.dim() != 2 or block_table.shape[0] != batch:
        refuse(NAME, f"block_table {tuple(block_table.shape)} for {batch} sequences")
    if tuple(cu_seqlens_q.shape) != (batch + 1,):
        refuse(NAME, f"cu_seqlens_q {tuple(cu_seqlens_q.shape)} for {batch} sequences")
    if scale <= 0:
        refuse(NAME, f"scale is {scale}; it must be positive")


def _caches(k_cache: Tensor, v_cache: Tensor) -> str:
    return f"k_cache {tuple(k_cache.shape)}, v_cache {tuple(v_cache.shape)}"
