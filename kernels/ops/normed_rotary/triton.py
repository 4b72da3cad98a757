"""normed_rotary on CUDA: a head is held as its two halves, which are also the halves of the rotation.

Where an engine names the pages of its cache, the programs of k write there too, and further ones copy v.

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
from samebits.kernels.ops.normed_rotary.pages import Pages
from samebits.kernels.ops.rotary.triton import turned
from samebits.kernels.ops.rounding_triton import rounded


@triton.jit
def copy_heads(x_ptr, y_ptr, first, heads, written, x_head_stride, y_head_stride, D: tl.constexpr, TILE: tl.constexpr):
    """TILE heads of one token, their bits as they are."""
    head = first + tl.arange(0, TILE)[:, None]
    j = tl.arange(0, D)[None, :]
    inside = (head < heads) & (j < tl.where(written, D, 0))
    tl.store(y_ptr + head * y_head_stride + j, tl.load(x_ptr + head * x_head_stride + j, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["slot_count"])
def normed_rotary_kernel(
    q_ptr,
    k_ptr,
    q_out_ptr,
    k_out_ptr,
    q_weight_ptr,
    k_weight_ptr,
    positions_ptr,
    cache_ptr,
    v_ptr,
    keys_ptr,
    values_ptr,
    slots_ptr,
    q_heads,
    k_heads,
    limit,
    q_stride,
    q_head_stride,
    k_stride,
    k_head_stride,
    eps,
    slot_count,
    v_stride,
    v_head_stride,
    keys_page_stride,
    keys_slot_stride,
    keys_head_stride,
    values_page_stride,
    values_slot_stride,
    values_head_stride,
    HALF: tl.constexpr,
    UNIT: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Program (token, block of heads): those of q, then of k; with PAGE, the slots of a page, then those of v."""
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    q_blocks = tl.cdiv(q_heads, TILE * TILES)
    if PAGE > 0:
        slot = tl.load(slots_ptr + token, mask=token < slot_count, other=-1)
        # A slot that is none divides to no page either; nothing is written there.
        page = slot // PAGE
        offset = slot - page * PAGE
        copied = block - q_blocks - tl.cdiv(k_heads, TILE * TILES)
        if copied >= 0:
            for t in tl.static_range(TILES):
                copy_heads(
                    v_ptr + token * v_stride,
                    values_ptr + page * values_page_stride + offset * values_slot_stride,
                    (copied * TILES + t) * TILE,
                    k_heads,
                    slot >= 0,
                    v_head_stride,
                    values_head_stride,
                    2 * HALF,
                    TILE,
                )
            return
    position = tl.load(positions_ptr + token).to(tl.int64)
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
        left, right = rounded(left, dtype), rounded(right, dtype)
        tl.store(target, left, mask=inside)
        tl.store(target + HALF, right, mask=inside)
        if PAGE > 0:
            written = inside & (i < tl.where(of_q | (slot < 0), 0, HALF))
            target = keys_ptr + page * keys_page_stride + offset * keys_slot_stride + head * keys_head_stride + i
            tl.store(target, left, mask=written)
            tl.store(target + HALF, right, mask=written)


def blocking(tokens: int) -> tuple[int, int]:
    """(heads per block, warps) for a number of tokens; no bit depends on them.

    A warp holds 4 heads of 128 at one 16-byte load per thread and half: fewer heads leave narrower loads and less to do
    in a row, more are done one after another with the weights and angles in registers.
    """
    return (4, 1) if tokens <= 256 else (8, 1)


@cache
def form_of(half: int, unit: int, heads: int, warps: int, page: int) -> Form:
    """The kernel for `heads` heads per block and `warps` warps. page: slots of a page, 0 where none is written."""
    tile = min(heads, max(1, WARP * warps * unit // half))
    sizes = {"HALF": half, "UNIT": unit, "TILE": tile, "TILES": heads // tile, "PAGE": page}
    return Form(normed_rotary_kernel, **sizes, num_warps=warps, enable_fp_fusion=False)


def run(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    cache: torch.Tensor,
    pages: Pages | None = None,
    blocks: tuple[int, int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See README.md. pages: where keys and values are written, too. blocks: heads per block (a power of two) and warps,
    in place of those of `blocking`."""
    tokens, q_heads, width = q.shape
    heads, warps = blocks or blocking(tokens)
    k_heads = k.shape[1]
    half = width // 2
    q_out, k_out = q.new_empty(q.shape), k.new_empty(k.shape)
    if tokens:
        page, written, slots = _into(pages) if pages else (0, (k, k, k, positions), (0,) * 9)
        k_blocks = -(-k_heads // heads)
        form_of(half, unit_of(q.dtype), heads, warps, page)(
            (tokens, -(-q_heads // heads) + k_blocks * (2 if page else 1), 1),
            (q, k, q_out, k_out, q_weight, k_weight, positions, cache, *written),
            (q_heads, k_heads, cache.shape[0], *q.stride()[:2], *k.stride()[:2], eps, *slots),
        )
    return q_out, k_out


def _into(pages: Pages) -> tuple[int, tuple[torch.Tensor, ...], tuple[int, ...]]:
    """Slots of a page, and the kernel's tensors from v_ptr and numbers from slot_count on."""
    v, keys, values, slots = pages.v, pages.keys, pages.values, pages.slots
    numbers = slots.shape[0], *v.stride()[:2], *keys.stride()[:3], *values.stride()[:3]
    return keys.shape[1], (v, keys, values, slots), numbers
