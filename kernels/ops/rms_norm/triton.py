"""rms_norm on CUDA: LANES threads per row, one 16-byte load per thread and pass.

M: rows, D: width of a row.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from samebits.kernels.ops.lanes import WARP, aligned
from samebits.kernels.ops.lanes_triton import lane_sum
from samebits.kernels.ops.launch import Form
from samebits.kernels.ops.rms_norm.contract import layout
from samebits.kernels.ops.rounding_triton import rounded

WARPS = 4
"""Warps of a block that holds several short rows."""
KEPT = 4
"""Passes whose elements stay in registers between the sum and the product; later ones are read again."""
BACKWARD_BLOCKS = 512
"""Blocks of rows in the backward: fixed, so that the gradient of the weight is the same from run to run."""


@triton.jit
def load_sum(x_ptr, residual_ptr, x_at, residual_at, inside, ADD: tl.constexpr):
    s = tl.load(x_ptr + x_at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        s += tl.load(residual_ptr + residual_at, mask=inside, other=0.0).to(tl.float32)
    return s


@triton.jit(do_not_specialize=["rows"])
def rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    s_ptr,
    rows,
    heads,
    x_stride,
    x_head_stride,
    residual_stride,
    residual_head_stride,
    eps,
    D: tl.constexpr,
    R: tl.constexpr,
    LANES: tl.constexpr,
    UNIT: tl.constexpr,
    PASSES: tl.constexpr,
    KEPT: tl.constexpr,
    ADD: tl.constexpr,
    SCALE: tl.constexpr,
):
    STEP: tl.constexpr = LANES * UNIT
    row = (tl.program_id(0) * R + tl.arange(0, R))[:, None].to(tl.int64)
    col = tl.arange(0, STEP)[None, :]
    x_row = (row // heads) * x_stride + (row % heads) * x_head_stride
    residual_row = (row // heads) * residual_stride + (row % heads) * residual_head_stride
    partial = tl.zeros((R, STEP), tl.float32)
    kept, weights = (), ()  # tuples of blocks: what stays in registers
    for p in tl.static_range(PASSES):
        at = p * STEP + col
        inside = (row < rows) & (at < D)
        s = load_sum(x_ptr, residual_ptr, x_row + at, residual_row + at, inside, ADD)
        # Asked for before the reduction, so that its latency is hidden.
        weight = tl.load(weight_ptr + row * 0 + at, mask=inside, other=0.0) if SCALE else s
        partial += s * s
        if p < KEPT:
            kept += (s,)  # type: ignore[assignment]
            weights += (weight,)  # type: ignore[assignment]
    total = lane_sum(partial, R, LANES, UNIT)
    r = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(total, D * 1.0) + eps))[:, None]
    for p in tl.static_range(PASSES):
        at = p * STEP + col
        inside = (row < rows) & (at < D)
        if p < KEPT:
            s = kept[p]
            weight = weights[p]
        else:
            s = load_sum(x_ptr, residual_ptr, x_row + at, residual_row + at, inside, ADD)
            weight = tl.load(weight_ptr + row * 0 + at, mask=inside, other=0.0) if SCALE else s
        if ADD:
            tl.store(s_ptr + row * D + at, rounded(s, s_ptr.dtype.element_ty), mask=inside)
        y = s * r
        if SCALE:
            y *= weight.to(tl.float32)
        tl.store(y_ptr + row * D + at, rounded(y, y_ptr.dtype.element_ty), mask=inside)


def rows_of(x: torch.Tensor) -> tuple[torch.Tensor, int, int, int]:
    """(x, heads, stride of a token, stride of a head) of [..., D], without a copy where its strides allow: a strided
    [T, H, D] stays, all else has one head.
    """
    width, dims = x.shape[-1], x.dim()
    if dims == 2 and x.stride(1) == 1 and not (x.stride(0) | width | x.data_ptr()) & 15:
        return x, 1, x.stride(0), width
    x = aligned(x if dims == 3 else x.reshape(-1, 1, width))
    return x, x.shape[1], x.stride(0), x.stride(1)


@cache
def form_of(width: int, dtype: torch.dtype, add: bool, scale: bool) -> tuple[int, Form]:
    """Rows of a block, and the kernel for them."""
    unit, lanes = layout(width, dtype)
    short = lanes <= WARP
    per_block = WARP // lanes * WARPS if short else 1
    passes = -(-width // (lanes * unit))
    shape = {"D": width, "R": per_block, "LANES": lanes, "UNIT": unit, "PASSES": passes, "KEPT": KEPT}
    warps = WARPS if short else lanes // WARP
    form = Form(rms_norm_kernel, ADD=add, SCALE=scale, enable_fp_fusion=False, num_warps=warps, **shape)
    return per_block, form


def run(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """See README.md. The last dim is contiguous; rows that are misaligned or no multiple of 16 wide are copied first:
    slower, the same bits.
    """
    width = x.shape[-1]
    y = x.new_empty(x.shape)
    s = None if residual is None else x.new_empty(x.shape)
    rows = y.numel() // width
    if not rows:
        return y if s is None else (y, s)
    per_block, form = form_of(width, x.dtype, residual is not None, weight is not None)
    source, heads, stride, head_stride = rows_of(x)
    # Where one is missing another stands for it, which the kernel does not read: a launch without one is Triton's.
    added, _, added_stride, added_head_stride = (source, 0, 0, 0) if residual is None else rows_of(residual)
    form(
        (-(-rows // per_block), 1, 1),
        (source, added, y if weight is None else weight, y, y if s is None else s),
        (rows, heads, stride, head_stride, added_stride, added_head_stride, eps),
    )
    return y if s is None else (y, s)


@triton.jit
def backward_kernel(
    grad_ptr,
    s_ptr,
    weight_ptr,
    grad_s_ptr,
    ds_ptr,
    dw_ptr,
    rows,
    rows_per_block,
    eps,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALE: tl.constexpr,
    ADD: tl.constexpr,
):
    col = tl.arange(0, BLOCK)
    inside = col < D
    first = tl.program_id(0) * rows_per_block
    weight = tl.load(weight_ptr + col, mask=inside, other=0.0).to(tl.float32) if SCALE else 1.0
    dw = tl.zeros((BLOCK,), tl.float32)
    for row in range(first, tl.minimum(first + rows_per_block, rows)):
        at = tl.cast(row, tl.int64) * D + col
        s = tl.load(s_ptr + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32)
        r = tl.rsqrt(tl.sum(s * s) / D + eps)
        normed = s * r
        gw = g * weight
        ds = r * (gw - normed * (tl.sum(gw * normed) / D))
        if ADD:
            ds += tl.load(grad_s_ptr + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(ds_ptr + at, ds.to(ds_ptr.dtype.element_ty), mask=inside)
        dw += g * normed
    if SCALE:
        tl.store(dw_ptr + tl.program_id(0) * D + col, dw, mask=inside)


def backward(
    grad: torch.Tensor, s: torch.Tensor, weight: torch.Tensor | None, eps: float, grad_s: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As `contract_backward`, one kernel and one sum over at most BACKWARD_BLOCKS rows."""
    width = s.shape[-1]
    rows = s.numel() // width
    ds = torch.empty(s.shape, dtype=s.dtype, device=s.device)
    per_block = triton.cdiv(rows, BACKWARD_BLOCKS) or 1
    blocks = triton.cdiv(rows, per_block)
    dw = None if weight is None else torch.empty((blocks, width), dtype=torch.float32, device=s.device)
    if rows:
        block = triton.next_power_of_2(width)
        backward_kernel[(blocks,)](
            grad.contiguous(),
            s.contiguous(),
            weight,
            None if grad_s is None else grad_s.contiguous(),
            ds,
            dw,
            rows,
            per_block,
            eps,
            D=width,
            BLOCK=block,
            SCALE=weight is not None,
            ADD=grad_s is not None,
            num_warps=min(16, max(1, block // 256)),
        )
    return ds, None if dw is None or weight is None else dw.sum(0).to(weight.dtype)
