"""The fast implementation of paged attention on CUDA: which kernel computes which rows. No choice here moves a bit."""

from __future__ import annotations

import hashlib

import torch
import triton
from samebits.kernels.ops.attention.layout import CONTRACT, SEGMENT, SEGMENT_TILES, TILE, exponent_scale
from samebits.kernels.ops.attention.triton import ROWS, decode_kernel, merge_kernel, prefill_kernel
from torch import Tensor

PROGRAMS = 528
"""Decode programs that fill a GPU of 132 multiprocessors four times over."""
MOST_SPLITS = 64
BLOCK = 128


def digest() -> str:
    """Names the contract in 16 hex digits: for cache keys of engines that compile around the operator."""
    return hashlib.sha256(f"attention {CONTRACT} {TILE} {SEGMENT}".encode()).hexdigest()[:16]


def splits_for(batch: int, key_heads: int, most_segments: int) -> int:
    """Programs per sequence and key head: enough to fill the GPU, at most one per segment; a power of two."""
    programs = batch * key_heads
    if programs >= PROGRAMS // 2:
        return 1
    wanted = triton.next_power_of_2(triton.cdiv(PROGRAMS, programs))
    return min(wanted, MOST_SPLITS, triton.next_power_of_2(most_segments))


def run(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, cu_seqlens_q: Tensor, seq_lens: Tensor, max_query_len: int,
    max_seq_len: int, scale: float,
) -> Tensor:  # fmt: skip
    """Arguments of op.attention: [T, H, D] in the dtype of q."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    heads, batch = q.shape[1], seq_lens.shape[0]
    if q.shape[0] == 0 or batch == 0:
        return out
    group = heads // k_cache.shape[2]
    decode(q, k_cache, v_cache, block_table, cu_seqlens_q, seq_lens, min(max_query_len, ROWS // group), max_seq_len, scale, out)
    if max_query_len * group > ROWS:
        prefill(q, k_cache, v_cache, block_table, cu_seqlens_q, seq_lens, scale, out)
    return out


def decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, cu_seqlens_q: Tensor, seq_lens: Tensor, most_rows: int,
    max_seq_len: int, scale: float, out: Tensor, splits: int | None = None, warps: int = 4, stages: int = 3, early: bool = False,
) -> None:  # fmt: skip
    """The sequences whose rows (query tokens x group) fit one decode program."""
    heads, size = q.shape[1:]
    key_heads, batch = k_cache.shape[2], seq_lens.shape[0]
    segments = triton.cdiv(max(max_seq_len, 1), SEGMENT)
    splits = splits_for(batch, key_heads, segments) if splits is None else splits
    partial = stat = out
    if splits > 1:
        partial = torch.empty((q.shape[0] * heads * segments, size), dtype=torch.float32, device=q.device)
        stat = torch.empty((q.shape[0] * heads * segments, 2), dtype=torch.float32, device=q.device)
    extra = {"launch_pdl": True} if early else {}
    decode_kernel[(batch * key_heads * splits,)](
        q, k_cache, v_cache, out, partial, stat, block_table, cu_seqlens_q, seq_lens, exponent_scale(scale), block_table.stride(0),
        q.stride(0), *k_cache.stride()[:3], *v_cache.stride()[:3], segments, splits, G=key_heads, GROUP=heads // key_heads, D=size,
        PAGE=k_cache.shape[1], FINAL=splits == 1, EARLY=early, R=ROWS, TILE=TILE, SEGMENT_TILES=SEGMENT_TILES, num_warps=warps,
        num_stages=stages, **extra,
    )  # fmt: skip
    if splits > 1:
        merge_kernel[(heads * max(most_rows, 1), batch)](
            partial, stat, out, cu_seqlens_q, seq_lens, segments, GROUP=heads // key_heads, D=size, H=heads, R=ROWS, SEGMENT=SEGMENT,
            EARLY=early, num_warps=1, **extra,
        )  # fmt: skip


def prefill(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, cu_seqlens_q: Tensor, seq_lens: Tensor, scale: float, out: Tensor,
    leave: int = ROWS, warps: int = 8, stages: int = 3,
) -> None:  # fmt: skip
    """The other sequences: tiles of BLOCK query tokens."""
    tokens, heads, size = q.shape
    batch = seq_lens.shape[0]
    prefill_kernel[(heads, tokens // BLOCK + batch)](
        q, k_cache, v_cache, out, block_table, cu_seqlens_q, seq_lens, exponent_scale(scale), batch, block_table.stride(0), q.stride(0),
        *k_cache.stride()[:3], *v_cache.stride()[:3], H=heads, GROUP=heads // k_cache.shape[2], D=size, PAGE=k_cache.shape[1], LEAVE=leave,
        BLOCK=BLOCK, TILE=TILE, SEGMENT_TILES=SEGMENT_TILES, num_warps=warps, num_stages=stages,
    )  # fmt: skip
