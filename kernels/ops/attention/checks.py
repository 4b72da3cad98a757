"""What the attention operator accepts; anything else is an error that names the thing and the reason."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.kernels.ops.attention.layout import uncovered
from samebits.kernels.ops.check import require, require_float, require_same

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
    require(q.dim() == 3, NAME, f"q must be [tokens, heads, head size]; got {tuple(q.shape)}")
    caches = f"k_cache {tuple(k_cache.shape)}, v_cache {tuple(v_cache.shape)}"
    require(
        k_cache.dim() == 4 and k_cache.shape == v_cache.shape,
        NAME,
        f"caches must be [pages, slots, key heads, head size]; got {caches}",
    )
    heads, size = q.shape[1:]
    require(k_cache.shape[3] == size, NAME, f"q has head size {size} but the caches are {caches}")
    why = uncovered(size, heads, k_cache.shape[2])
    require(not why, NAME, why)
    slots = k_cache.shape[1]
    require(slots > 0 and slots & (slots - 1) == 0, NAME, f"pages of {slots} slots; a power of two is needed")
    require(
        q.numel() == 0 or (q.stride(2) == 1 and q.stride(1) == size),
        NAME,
        f"q has strides {q.stride()}: heads must lie side by side",
    )
    require(k_cache.stride(3) == 1 and v_cache.stride(3) == 1, NAME, "the last dim of the caches must be contiguous")
    for name, value in (("block_table", block_table), ("cu_seqlens_q", cu_seqlens_q), ("seq_lens", seq_lens)):
        require(value.dtype == torch.int32, NAME, f"{name} has dtype {value.dtype}; int32 is needed")
        require(value.device == q.device, NAME, f"{name} is on {value.device} but q is on {q.device}")
        require(value.numel() == 0 or value.stride(-1) == 1, NAME, f"{name} must be contiguous in its last dim")
    batch = seq_lens.shape[0]
    require(
        block_table.dim() == 2 and block_table.shape[0] == batch,
        NAME,
        f"block_table {tuple(block_table.shape)} for {batch} sequences",
    )
    require(
        tuple(cu_seqlens_q.shape) == (batch + 1,),
        NAME,
        f"cu_seqlens_q {tuple(cu_seqlens_q.shape)} for {batch} sequences",
    )
    require(scale > 0, NAME, f"scale is {scale}; it must be positive")
