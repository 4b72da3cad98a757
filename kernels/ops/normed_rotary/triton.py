"""normed_rotary on CUDA: a head is held as its two halves, which are also the halves of the rotation.

T: tokens, H: query heads, G: key heads, D: head size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from samebits.kernels.ops.lanes import unit_of
from samebits.kernels.ops.lanes_triton import halve
from samebits.kernels.ops.rotary.triton import turned
from samebits.kernels.ops.rounding_triton import rounded

HEADS = 8
"""Heads of a block."""


@triton.jit
def turn_normed(
    x_ptr,
    y_ptr,
    weight_ptr,
    token,
    heads,
    first_head,
    token_stride,
    head_stride,
    cos,
    sin,
    eps,
    HALF: tl.constexpr,
    UNIT: tl.constexpr,
    HEADS: tl.constexpr,
):
    LANES: tl.constexpr = HALF // UNIT
    head = first_head + tl.arange(0, HEADS)[:, None]
    i = tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (i < HALF)
    source = x_ptr + token * token_stride + head * head_stride
    a = tl.load(source + i, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(source + HALF + i, mask=inside, other=0.0).to(tl.float32)
    # Units fold inside each half; the first fold of the 2 * LANES lanes adds the halves.
    low = halve(tl.reshape(a * a, (HEADS, LANES, UNIT)), HEADS, LANES, UNIT)
    high = halve(tl.reshape(b * b, (HEADS, LANES, UNIT)), HEADS, LANES, UNIT)
    total = tl.reshape(halve(tl.reshape(low + high, (HEADS, 1, LANES)), HEADS, 1, LANES), (HEADS,))
    r = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(total, HALF * 2.0) + eps))[:, None]
    dtype: tl.constexpr = y_ptr.dtype.element_ty
    a = rounded(a * r * tl.load(weight_ptr + i).to(tl.float32), dtype).to(tl.float32)
    b = rounded(b * r * tl.load(weight_ptr + HALF + i).to(tl.float32), dtype).to(tl.float32)
    first, second = turned(a, b, cos[None, :], sin[None, :])
    target = y_ptr + (token * heads + head) * (2 * HALF)
    tl.store(target + i, rounded(first, dtype), mask=inside)
    tl.store(target + HALF + i, rounded(second, dtype), mask=inside)


@triton.jit
def normed_rotary_kernel(
    q_ptr,
    k_ptr,
    q_out_ptr,
    k_out_ptr,
    q_weight_ptr,
    k_weight_ptr,
    positions_ptr,
    cache_ptr,
    q_heads,
    k_heads,
    limit,
    q_stride,
    q_head_stride,
    k_stride,
    k_head_stride,
    eps,
    HALF: tl.constexpr,
    UNIT: tl.constexpr,
    HEADS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    position = tl.load(positions_ptr + token).to(tl.int64)
    i = tl.arange(0, HALF)
    known = i < tl.where((position >= 0) & (position < limit), HALF, 0)
    cos = tl.load(cache_ptr + position * 2 * HALF + i, mask=known, other=float("nan")).to(tl.float32)
    sin = tl.load(cache_ptr + position * 2 * HALF + HALF + i, mask=known, other=float("nan")).to(tl.float32)
    q_blocks = tl.cdiv(q_heads, HEADS)
    if block < q_blocks:
        turn_normed(
            q_ptr,
            q_out_ptr,
            q_weight_ptr,
            token,
            q_heads,
            block * HEADS,
            q_stride,
            q_head_stride,
            cos,
            sin,
            eps,
            HALF,
            UNIT,
            HEADS,
        )
    else:
        turn_normed(
            k_ptr,
            k_out_ptr,
            k_weight_ptr,
            token,
            k_heads,
            (block - q_blocks) * HEADS,
            k_stride,
            k_head_stride,
            cos,
            sin,
            eps,
            HALF,
            UNIT,
            HEADS,
        )


def run(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    cache: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See README.md."""
    tokens, q_heads, width = q.shape
    k_heads = k.shape[1]
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    if tokens:
        normed_rotary_kernel[(tokens, triton.cdiv(q_heads, HEADS) + triton.cdiv(k_heads, HEADS))](
            q,
            k,
            q_out,
            k_out,
            q_weight,
            k_weight,
            positions,
            cache,
            q_heads,
            k_heads,
            cache.shape[0],
            q.stride(0),
            q.stride(1),
            k.stride(0),
            k.stride(1),
            eps,
            HALF=width // 2,
            UNIT=unit_of(q.dtype),
            HEADS=HEADS,
            num_warps=2,
            enable_fp_fusion=False,
        )
    return q_out, k_out
