"""The contract of paged attention on CUDA: one row per program, segment by segment, tile by tile, one key tile at a
time."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.kernels.ops.attention.layout import SEGMENT_TILES, TILE, exponent_scale


@triton.jit(do_not_specialize=["table_stride"])
def contract_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    table_ptr,
    cu_ptr,
    len_ptr,
    c,
    table_stride,
    q_token_stride,
    k_page_stride,
    k_slot_stride,
    k_head_stride,
    v_page_stride,
    v_slot_stride,
    v_head_stride,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    SEGMENT: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    b = 0
    while tl.load(cu_ptr + b + 1) <= token:
        b += 1
    position = tl.load(len_ptr + b) - (tl.load(cu_ptr + b + 1) - token)
    # A matrix product needs 16 rows: the row stands in the first, the others are zero.
    first_R = tl.arange(0, 16) == 0
    d = tl.arange(0, D)
    q_RD = tl.load(
        q_ptr + token * q_token_stride + h * D + d[None, :] + first_R[:, None] * 0, mask=first_R[:, None], other=0.0
    )
    total_m, total_l, total_RD = (
        tl.full((16,), float("-inf"), tl.float32),
        tl.zeros((16,), tl.float32),
        tl.zeros((16, D), tl.float32),
    )
    for segment in range(0, position + 1, SEGMENT):
        m, norm, acc_RD = (
            tl.full((16,), float("-inf"), tl.float32),
            tl.zeros((16,), tl.float32),
            tl.zeros((16, D), tl.float32),
        )
        for tile in range(segment, tl.minimum(segment + SEGMENT, position + 1), TILE):
            n = tile + tl.arange(0, TILE)
            page = tl.load(table_ptr + b * table_stride + n // PAGE, mask=n <= position, other=0).to(tl.int64)
            k_at = page * k_page_stride + (n % PAGE) * k_slot_stride + (h // GROUP) * k_head_stride
            v_at = page * v_page_stride + (n % PAGE) * v_slot_stride + (h // GROUP) * v_head_stride
            k_ND = tl.load(k_ptr + k_at[:, None] + d[None, :], mask=(n <= position)[:, None], other=0.0)
            v_ND = tl.load(v_ptr + v_at[:, None] + d[None, :], mask=(n <= position)[:, None], other=0.0)
            s = tl.where((n <= position)[None, :], tl.dot(q_RD, tl.trans(k_ND), input_precision="ieee"), float("-inf"))
            new_m = tl.maximum(m, tl.max(s, 1) * c)
            p = tl.exp2(tl.fma(s, tl.zeros_like(s) + c, tl.zeros_like(s) - new_m[:, None]))
            alpha = tl.exp2(m - new_m)
            counts = tl.sum((p + 2.0).to(tl.int32, bitcast=True) - 0x40000000, 1)
            norm = tl.fma(norm, alpha, counts.to(tl.float32) * 2.384185791015625e-07)
            acc_RD = tl.dot(p.to(v_ND.dtype), v_ND, acc_RD * alpha[:, None], input_precision="ieee")
            m = new_m
        new_m = tl.maximum(total_m, m)
        old, add = tl.exp2(total_m - new_m), tl.exp2(m - new_m)
        total_l = tl.fma(total_l, old, norm * add)
        total_RD = tl.fma(total_RD, tl.zeros_like(total_RD) + old[:, None], acc_RD * add[:, None])
        total_m = new_m
    out_RD = (total_RD / total_l[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + (token * H + h) * D + d[None, :] + first_R[:, None] * 0, out_RD, mask=first_R[:, None])


def contract_cuda(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    scale: float,
) -> Tensor:
    """[T, H, D] in the dtype of q."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tokens, heads, size = q.shape
    if tokens:
        contract_kernel[(tokens, heads)](
            q,
            k_cache,
            v_cache,
            out,
            block_table,
            cu_seqlens_q,
            seq_lens,
            exponent_scale(scale),
            block_table.stride(0),
            q.stride(0),
            *k_cache.stride()[:3],
            *v_cache.stride()[:3],
            H=heads,
            GROUP=heads // k_cache.shape[2],
            D=size,
            PAGE=k_cache.shape[1],
            TILE=TILE,
            SEGMENT=TILE * SEGMENT_TILES,
            num_warps=4,
            num_stages=1,
        )
    return out
