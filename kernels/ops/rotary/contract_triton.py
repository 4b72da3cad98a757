"""The contract of rotary on CUDA: one head of one token, one tile."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def turned(a, b, cos, sin):
    """Both halves after the rotation, float32, NaN made canonical."""
    first = a * cos - b * sin
    second = b * cos + a * sin
    return tl.where(first == first, first, float("nan")), tl.where(second == second, second, float("nan"))


@triton.jit
def contract_kernel(x_ptr, y_ptr, positions_ptr, cache_ptr, heads, limit, D: tl.constexpr, HALF: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(positions_ptr + row // heads).to(tl.int64)
    i = tl.arange(0, TILE)
    inside = i < HALF
    known = i < tl.where((position >= 0) & (position < limit), HALF, 0)
    cos = tl.load(cache_ptr + position * 2 * HALF + i, mask=known, other=float("nan")).to(tl.float32)
    sin = tl.load(cache_ptr + position * 2 * HALF + HALF + i, mask=known, other=float("nan")).to(tl.float32)
    a = tl.load(x_ptr + row * D + i, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + row * D + HALF + i, mask=inside, other=0.0).to(tl.float32)
    first, second = turned(a, b, cos, sin)
    tl.store(y_ptr + row * D + i, first.to(y_ptr.dtype.element_ty), mask=inside)
    tl.store(y_ptr + row * D + HALF + i, second.to(y_ptr.dtype.element_ty), mask=inside)


def contract_cuda(x: torch.Tensor, positions: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """Any strides: copies are made, this is not meant to be fast."""
    y = x.contiguous().clone()
    tokens, heads, width = x.shape
    half = cache.shape[-1] // 2
    if y.numel():
        contract_kernel[(tokens * heads,)](
            x.contiguous(), y, positions, cache.contiguous(), heads, cache.shape[0], D=width, HALF=half, TILE=triton.next_power_of_2(half),
            enable_fp_fusion=False,
        )  # fmt: skip
    return y
