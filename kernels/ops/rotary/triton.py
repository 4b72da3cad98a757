"""rotary on CUDA: one launch for q and k, several heads per block; views of a merged qkv are read in place.

T: tokens, H: query heads, G: key heads, D: head size.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from samebits.kernels.ops.launch import Form
from samebits.kernels.ops.rounding_triton import rounded


@triton.jit
def turned(a, b, cos, sin):
    """Both halves after the rotation, float32."""
    return a * cos - b * sin, b * cos + a * sin


@triton.jit
def turn_heads(
    x_ptr,
    y_ptr,
    token,
    heads,
    first_head,
    token_stride,
    head_stride,
    cos,
    sin,
    SIGN: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    HEADS: tl.constexpr,
    TILE: tl.constexpr,
    REST_TILE: tl.constexpr,
):
    head = first_head + tl.arange(0, HEADS)[:, None]
    i = tl.arange(0, TILE)[None, :]
    inside = (head < heads) & (i < HALF)
    source = x_ptr + token * token_stride + head * head_stride
    target = y_ptr + (token * heads + head) * D
    a = tl.load(source + i, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(source + HALF + i, mask=inside, other=0.0).to(tl.float32)
    first, second = turned(a, b, cos[None, :], SIGN * sin[None, :])
    tl.store(target + i, rounded(first, y_ptr.dtype.element_ty), mask=inside)
    tl.store(target + HALF + i, rounded(second, y_ptr.dtype.element_ty), mask=inside)
    if REST > 0:
        j = tl.arange(0, REST_TILE)[None, :]
        kept = (head < heads) & (j < REST)
        tl.store(target + 2 * HALF + j, tl.load(source + 2 * HALF + j, mask=kept), mask=kept)


@triton.jit
def rotary_kernel(
    q_ptr,
    k_ptr,
    q_out_ptr,
    k_out_ptr,
    positions_ptr,
    cache_ptr,
    q_heads,
    k_heads,
    limit,
    q_stride,
    q_head_stride,
    k_stride,
    k_head_stride,
    SIGN: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    HEADS: tl.constexpr,
    TILE: tl.constexpr,
    REST_TILE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    position = tl.load(positions_ptr + token).to(tl.int64)
    i = tl.arange(0, TILE)
    known = i < tl.where((position >= 0) & (position < limit), HALF, 0)
    cos = tl.load(cache_ptr + position * 2 * HALF + i, mask=known, other=float("nan")).to(tl.float32)
    sin = tl.load(cache_ptr + position * 2 * HALF + HALF + i, mask=known, other=float("nan")).to(tl.float32)
    q_blocks = tl.cdiv(q_heads, HEADS)
    if block < q_blocks:
        turn_heads(
            q_ptr,
            q_out_ptr,
            token,
            q_heads,
            block * HEADS,
            q_stride,
            q_head_stride,
            cos,
            sin,
            SIGN,
            D,
            HALF,
            REST,
            HEADS,
            TILE,
            REST_TILE,
        )
    else:
        turn_heads(
            k_ptr,
            k_out_ptr,
            token,
            k_heads,
            (block - q_blocks) * HEADS,
            k_stride,
            k_head_stride,
            cos,
            sin,
            SIGN,
            D,
            HALF,
            REST,
            HEADS,
            TILE,
            REST_TILE,
        )


@cache
def form_of(sign: float, width: int, half: int, most_heads: int) -> tuple[int, Form]:
    """Heads of a block, and the kernel for them. half: of the rotated part; most_heads: of q or k."""
    tile, rest = triton.next_power_of_2(half), width - 2 * half
    heads = max(1, min(triton.next_power_of_2(most_heads), 1024 // tile))
    sizes = {"SIGN": sign, "D": width, "HALF": half, "REST": rest, "HEADS": heads, "TILE": tile}
    left = triton.next_power_of_2(max(rest, 1))
    return heads, Form(rotary_kernel, **sizes, REST_TILE=left, num_warps=4, enable_fp_fusion=False)


def launch(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cache: torch.Tensor, sign: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate by `sign` times the angle."""
    tokens, q_heads, width = q.shape
    k_heads = k.shape[1]
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    if tokens:
        heads, form = form_of(sign, width, cache.shape[-1] // 2, max(q_heads, k_heads))
        form(
            (tokens, -(-q_heads // heads) - (-k_heads // heads), 1),
            (q, k, q_out, k_out, positions, cache),
            (q_heads, k_heads, cache.shape[0], *q.stride()[:2], *k.stride()[:2]),
        )
    return q_out, k_out


def run(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """See README.md."""
    return launch(q, k, positions, cache, 1.0)


def backward(
    grad_q: torch.Tensor, grad_k: torch.Tensor, positions: torch.Tensor, cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `contract_backward`."""
    return launch(grad_q.contiguous(), grad_k.contiguous(), positions, cache, -1.0)
