"""silu_mul on CUDA: tiles of one row, 16-byte loads; views of a merged gate_up are read in place."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from samebits.kernels.ops.launch import Form
from samebits.kernels.ops.rounding_triton import rounded

TILE = 1024
FEW_ROWS = 128
"""Up to here a row is cut into halves of a tile: more blocks, less work in a row of dependent steps."""


@triton.jit
def gated(g, u):
    """silu(g) * u in float32."""
    return tl.div_rn(g, 1.0 + tl.exp(-g)) * u


@triton.jit
def silu_mul_kernel(gate_ptr, up_ptr, y_ptr, width, gate_stride, up_stride, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = col < width
    g = tl.load(gate_ptr + row * gate_stride + col, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up_ptr + row * up_stride + col, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * width + col, rounded(gated(g, u), y_ptr.dtype.element_ty), mask=inside)


@cache
def form_of(tile: int) -> Form:
    """The kernel for blocks of `tile` columns."""
    return Form(silu_mul_kernel, TILE=tile, num_warps=4, enable_fp_fusion=False)


def run(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """See README.md."""
    y = gate.new_empty(gate.shape)
    width = gate.shape[-1]
    if y.numel():
        g, u = (gate, up) if gate.dim() == 2 else (gate.reshape(-1, width), up.reshape(-1, width))
        tile = TILE if g.shape[0] > FEW_ROWS else TILE // 2
        form_of(tile)((g.shape[0], -(-width // tile), 1), (g, u, y), (width, g.stride(0), u.stride(0)))
    return y


@triton.jit
def backward_kernel(
    grad_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, width, grad_stride, gate_stride, up_stride, TILE: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = col < width
    dy = tl.load(grad_ptr + row * grad_stride + col, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gate_ptr + row * gate_stride + col, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up_ptr + row * up_stride + col, mask=inside, other=0.0).to(tl.float32)
    e = 1.0 + tl.exp(-g)
    sg = 1.0 / e
    tl.store(
        dgate_ptr + row * width + col,
        (dy * u * (sg * (1.0 + g * (1.0 - sg)))).to(dgate_ptr.dtype.element_ty),
        mask=inside,
    )
    tl.store(dup_ptr + row * width + col, (dy * (g / e)).to(dup_ptr.dtype.element_ty), mask=inside)


def backward(grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As `contract_backward`."""
    dgate = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    dup = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    width = gate.shape[-1]
    if dgate.numel():
        d, g, u = grad.reshape(-1, width), gate.reshape(-1, width), up.reshape(-1, width)
        d = d if d.stride(-1) == 1 else d.contiguous()
        grid = (g.shape[0], triton.cdiv(width, TILE))
        backward_kernel[grid](d, g, u, dgate, dup, width, d.stride(0), g.stride(0), u.stride(0), TILE=TILE, num_warps=4)
    return dgate, dup
