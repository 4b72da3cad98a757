"""normed_rotary on CUDA: a head is held as its two halves, which are also the halves of the rotation.

T: tokens, H: query heads, G: key heads, D: head size.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from samebits.kernels.ops.lanes import WARP, unit_of
from samebits.kernels.ops.lanes_triton import halve_pairs
from samebits.kernels.ops.launch import Form
from samebits.kernels.ops.rotary.triton import turned
from samebits.kernels.ops.rounding_triton import rounded


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
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    position = tl.load(positions_ptr + token).to(tl.int64)
    q_blocks = tl.cdiv(q_heads, TILE * TILES)
    # Pointers are chosen, not branches: heads and weights are asked for while the position is on its way.
    of_q = block < q_blocks
    x_ptr = tl.where(of_q, q_ptr, k_ptr)
    y_ptr = tl.where(of_q, q_out_ptr, k_out_ptr)
    weight_ptr = tl.where(of_q, q_weight_ptr, k_weight_ptr)
    heads = tl.where(of_q, q_heads, k_heads)
    head_stride = tl.where(of_q, q_head_stride, k_head_stride)
    x_ptr += token * tl.where(of_q, q_stride, k_stride)
    first = tl.where(of_q, block, block - q_blocks) * (TILE * TILES) + tl.arange(0, TILE)[:, None]
    i = tl.arange(0, HALF)[None, :]
    low, high = (), ()
    for t in tl.static_range(TILES):
        head = first + t * TILE
        inside = (head < heads) & (i < HALF)
        source = x_ptr + head * head_stride
        low += (tl.load(source + i, mask=inside, other=0.0),)  # type: ignore[assignment]
        high += (tl.load(source + HALF + i, mask=inside, other=0.0),)  # type: ignore[assignment]
    # Every head reads its own weights and angles: one row for all would have to change threads.
    at = first * 0 + i
    low_weight = tl.load(weight_ptr + at).to(tl.float32)
    high_weight = tl.load(weight_ptr + HALF + at).to(tl.float32)
    known = at < tl.where((position >= 0) & (position < limit), HALF, 0)
    angle = cache_ptr + position * (2 * HALF) + at
    cos = tl.load(angle, mask=known, other=float("nan")).to(tl.float32)
    sin = tl.load(angle + HALF, mask=known, other=float("nan")).to(tl.float32)
    LANES: tl.constexpr = HALF // UNIT
    dtype: tl.constexpr = y_ptr.dtype.element_ty
    for t in tl.static_range(TILES):
        a = low[t].to(tl.float32)  # type: ignore[var-annotated]
        b = high[t].to(tl.float32)
        # Units fold inside each half; the first fold of the 2 * LANES lanes adds the halves.
        lanes = halve_pairs(a * a, TILE * LANES, UNIT) + halve_pairs(b * b, TILE * LANES, UNIT)
        total = tl.reshape(halve_pairs(lanes, TILE, LANES), (TILE, 1))
        # 2 * HALF is a power of two: its reciprocal is exact, and so is the product what the division would be.
        r = tl.div_rn(1.0, tl.sqrt_rn(total * (0.5 / HALF) + eps))
        # NaN stays NaN here; the last rounding gives it its bits.
        a = (a * r * low_weight).to(dtype).to(tl.float32)
        b = (b * r * high_weight).to(dtype).to(tl.float32)
        left, right = turned(a, b, cos, sin)
        head = first + t * TILE
        inside = (head < heads) & (i < HALF)
        target = y_ptr + (token * heads + head) * (2 * HALF) + i
        tl.store(target, rounded(left, dtype), mask=inside)
        tl.store(target + HALF, rounded(right, dtype), mask=inside)


def blocking(tokens: int) -> tuple[int, int]:
    """(heads per block, warps) for a number of tokens; no bit depends on them.

    A warp holds 4 heads of 128 at one 16-byte load per thread and half: fewer heads leave narrower loads and less to do
    in a row, more are done one after another with the weights and angles in registers.
    """
    return (4, 1) if tokens <= 256 else (8, 1)


@cache
def form_of(half: int, unit: int, heads: int, warps: int) -> Form:
    """The kernel for `heads` heads per block and `warps` warps."""
    tile = min(heads, max(1, WARP * warps * unit // half))
    sizes = {"HALF": half, "UNIT": unit, "TILE": tile, "TILES": heads // tile}
    return Form(normed_rotary_kernel, **sizes, num_warps=warps, enable_fp_fusion=False)


def run(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    cache: torch.Tensor,
    blocks: tuple[int, int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See README.md. blocks: heads per block (a power of two) and warps, in place of those of `blocking`."""
    tokens, q_heads, width = q.shape
    heads, warps = blocks or blocking(tokens)
    k_heads = k.shape[1]
    half = width // 2
    q_out, k_out = q.new_empty(q.shape), k.new_empty(k.shape)
    if tokens:
        form_of(half, unit_of(q.dtype), heads, warps)(
            (tokens, -(-q_heads // heads) - (-k_heads // heads), 1),
            (q, k, q_out, k_out, q_weight, k_weight, positions, cache),
            (q_heads, k_heads, cache.shape[0], *q.stride()[:2], *k.stride()[:2], eps),
        )
    return q_out, k_out
