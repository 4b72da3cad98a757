"""The contract of rms_norm on CUDA: one row, one tile, one loop, the order written out."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from samebits.kernels.ops.lanes_triton import lane_sum


@triton.jit
def contract_kernel(
    x_ptr, residual_ptr, weight_ptr, y_ptr, s_ptr, eps, D: tl.constexpr, LANES: tl.constexpr, UNIT: tl.constexpr, ADD: tl.constexpr,
    SCALE: tl.constexpr,
):  # fmt: skip
    STEP: tl.constexpr = LANES * UNIT
    row = tl.program_id(0).to(tl.int64) * D
    col = tl.arange(0, STEP)
    partial = tl.zeros((STEP,), tl.float32)
    for start in range(0, D, STEP):
        inside = start + col < D
        s = tl.load(x_ptr + row + start + col, mask=inside, other=0.0).to(tl.float32)
        if ADD:
            s += tl.load(residual_ptr + row + start + col, mask=inside, other=0.0).to(tl.float32)
        partial += s * s
    total = lane_sum(tl.reshape(partial, (1, STEP)), 1, LANES, UNIT, False)
    r = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(total, D * 1.0) + eps))
    for start in range(0, D, STEP):
        inside = start + col < D
        s = tl.load(x_ptr + row + start + col, mask=inside, other=0.0).to(tl.float32)
        if ADD:
            s += tl.load(residual_ptr + row + start + col, mask=inside, other=0.0).to(tl.float32)
            tl.store(s_ptr + row + start + col, s.to(s_ptr.dtype.element_ty), mask=inside)
        y = s * r
        if SCALE:
            y *= tl.load(weight_ptr + start + col, mask=inside, other=0.0).to(tl.float32)
        y = tl.where(y == y, y, float("nan"))
        tl.store(y_ptr + row + start + col, y.to(y_ptr.dtype.element_ty), mask=inside)


def contract_cuda(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, residual: torch.Tensor | None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Any strides: copies are made, this is not meant to be fast."""
    from samebits.kernels.ops.rms_norm.contract import layout

    width = x.shape[-1]
    unit, lanes = layout(width, x.dtype)
    x = x.contiguous()
    residual = None if residual is None else residual.contiguous()
    y, s = torch.empty_like(x), torch.empty_like(x) if residual is not None else None
    rows = x.numel() // width
    if rows:
        contract_kernel[(rows,)](
            x, residual, None if weight is None else weight.contiguous(), y, s, eps, D=width, LANES=lanes, UNIT=unit, ADD=residual is not None,
            SCALE=weight is not None, enable_fp_fusion=False,
        )  # fmt: skip
    return y if s is None else (y, s)
