"""Triton kernels of the linear operator. M token rows, N outputs, K reduced.

Every configuration gives the same bits: each output element is one float32 accumulator over ascending K, so tiles,
warps, stages
and which operand is called A move only the speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.kernels.ops.launch import Form


@dataclass(slots=True, frozen=True)
class Config:
    """One launch: tile of `block_m` tokens x `block_n` outputs, K in steps of `block_k`.

    swap: weights are the left operand (64-row wgmma tiles hold weights, a few tokens are the narrow side).
    """

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    swap: bool = False


PLAIN = Config(16, 64, 64, 4, 1)


@triton.jit(do_not_specialize=["M"])
def linear_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SWAP: tl.constexpr,
    EVEN_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    # Programs with the same weights are neighbours in launch order, so weights leave HBM once.
    blocks_m = tl.cdiv(M, BLOCK_M)
    m = (tl.program_id(0) % blocks_m) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) // blocks_m) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    in_m, in_n = m < M, n < N
    x_row, w_row = x_ptr + m.to(tl.int64) * K, w_ptr + n.to(tl.int64) * K
    acc = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        # Rows outside M or N are zero; they reach no element that is stored.
        if SWAP:
            if EVEN_K:
                w = tl.load(w_row[:, None] + (start + k)[None, :], mask=in_n[:, None], other=0.0)
                x = tl.load(x_row[None, :] + (start + k)[:, None], mask=in_m[None, :], other=0.0)
            else:
                w = tl.load(
                    w_row[:, None] + (start + k)[None, :], mask=in_n[:, None] & (start + k < K)[None, :], other=0.0
                )
                x = tl.load(
                    x_row[None, :] + (start + k)[:, None], mask=in_m[None, :] & (start + k < K)[:, None], other=0.0
                )
            acc = tl.dot(w, x, acc, input_precision=PRECISION)
        else:
            if EVEN_K:
                x = tl.load(x_row[:, None] + (start + k)[None, :], mask=in_m[:, None], other=0.0)
                w = tl.load(w_row[None, :] + (start + k)[:, None], mask=in_n[None, :], other=0.0)
            else:
                x = tl.load(
                    x_row[:, None] + (start + k)[None, :], mask=in_m[:, None] & (start + k < K)[None, :], other=0.0
                )
                w = tl.load(
                    w_row[None, :] + (start + k)[:, None], mask=in_n[None, :] & (start + k < K)[:, None], other=0.0
                )
            acc = tl.dot(x, w, acc, input_precision=PRECISION)
    if SWAP:
        acc = tl.trans(acc)
    if HAS_BIAS:
        acc += tl.load(b_ptr + n, mask=in_n, other=0.0).to(tl.float32)[None, :]
    y = y_ptr + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(y, acc.to(y_ptr.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


@cache
def form_of(config: Config, even: bool, has_bias: bool) -> Form:
    """The kernel of a configuration. even: K is a multiple of its block."""
    return Form(
        linear_kernel,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        SWAP=config.swap,
        EVEN_K=even,
        HAS_BIAS=has_bias,
        PRECISION="ieee",
        num_warps=config.warps,
        num_stages=config.stages,
    )


def chain(
    x_MK: Tensor, weight_NK: Tensor, bias: Tensor | None, config: Config, dtype: torch.dtype | None = None
) -> Tensor:
    """One launch of `linear_kernel`: [M, N]. x and weight dense, one dtype, one device.

    dtype: of the result, that of x or float32 (the accumulator as it is); None: that of x.
    """
    M, K = x_MK.shape
    N = weight_NK.shape[0]
    y_MN = torch.empty(M, N, dtype=dtype or x_MK.dtype, device=x_MK.device)
    if M == 0:
        return y_MN
    if x_MK.dtype == torch.float32:
        config = Config(16, 32, 32, 4, 1)
    grid = (-(-M // config.block_m) * -(-N // config.block_n), 1, 1)
    form = form_of(config, K % config.block_k == 0, bias is not None)
    form(grid, (x_MK, weight_NK, weight_NK if bias is None else bias, y_MN), (M, N, K))
    return y_MN
