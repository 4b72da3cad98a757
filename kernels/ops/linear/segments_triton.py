"""Triton kernels of the linear operator where the contract cuts K into S > 1 segments. M token rows, N outputs, K
reduced.

Each segment is a chain of its own; the sums are folded in ascending order. Whether one program walks all segments or
each has a program of its own moves no bit.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from samebits.kernels.ops.linear.triton import Config

SINGLE = Config(16, 32, 32, 4, 1)
"""For float32 inputs."""


@triton.jit(do_not_specialize=["M"])
def segments_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    M,
    N,
    K,
    segment,
    span,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TMA: tl.constexpr,
    SWAP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EARLY: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (part of K, tile): the segments of `span` elements of K, one after another, into y [K / span, M, N].
    BLOCK_K divides `segment`, so no step reaches over its end. TMA: x_ptr and w_ptr are descriptors."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    blocks_m = tl.cdiv(M, BLOCK_M)
    tiles = blocks_m * tl.cdiv(N, BLOCK_N)
    tile, s = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    first_m, first_n = (tile % blocks_m) * BLOCK_M, (tile // blocks_m) * BLOCK_N
    m, n = first_m + tl.arange(0, BLOCK_M), first_n + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    in_m, in_n = m < M, n < N
    if not TMA:
        x_row, w_row = x_ptr + m.to(tl.int64) * K, w_ptr + n.to(tl.int64) * K
    acc = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), tl.float32)
    total = tl.zeros_like(acc)
    end = s * span + segment
    for start in range(s * span, (s + 1) * span, BLOCK_K):
        # Rows outside M or N are zero; they reach no element that is stored.
        if TMA:
            x = x_ptr.load([first_m, start])
            w = w_ptr.load([first_n, start])
            acc = tl.dot(x, w.T, acc, input_precision=PRECISION)
        elif SWAP:
            w = tl.load(w_row[:, None] + (start + k)[None, :], mask=in_n[:, None], other=0.0)
            x = tl.load(x_row[None, :] + (start + k)[:, None], mask=in_m[None, :], other=0.0)
            acc = tl.dot(w, x, acc, input_precision=PRECISION)
        else:
            x = tl.load(x_row[:, None] + (start + k)[None, :], mask=in_m[:, None], other=0.0)
            w = tl.load(w_row[None, :] + (start + k)[:, None], mask=in_n[None, :], other=0.0)
            acc = tl.dot(x, w, acc, input_precision=PRECISION)
        if start + BLOCK_K == end:
            total += acc
            acc = tl.zeros_like(acc)
            end += segment
    if SWAP:
        total = tl.trans(total)
    if HAS_BIAS:
        total += tl.load(b_ptr + n, mask=in_n, other=0.0).to(tl.float32)[None, :]
    y = y_ptr + (s * M + m).to(tl.int64)[:, None] * N + n[None, :]
    tl.store(y, total.to(y_ptr.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


@triton.jit
def fold_kernel(
    part_ptr,
    b_ptr,
    y_ptr,
    size,
    N,
    S: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EARLY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """y = ((0 + s0) + s1) + ... + bias over `size` = M x N elements, in float32, rounded once."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    if EARLY:
        tl.extra.cuda.gdc_wait()
    part = part_ptr + at
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in tl.static_range(S):
        total += tl.load(part, mask=inside, other=0.0)
        part += size
    if HAS_BIAS:
        total += tl.load(b_ptr + at % N, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=inside)


def _early() -> bool:
    """The fold is launched while the kernel before it runs, and waits there; not under the interpreter."""
    return isinstance(fold_kernel, triton.runtime.JITFunction)


def _launch(
    x_MK: Tensor, weight_NK: Tensor, bias: Tensor | None, y: Tensor, config: Config, S: int, walk: bool, tma: bool
) -> None:
    (M, K), N = x_MK.shape, weight_NK.shape[0]
    segment = K // S
    if x_MK.dtype == torch.float32:
        config = SINGLE
    config = replace(config, block_k=min(config.block_k, segment & -segment))
    tiles = triton.cdiv(M, config.block_m) * triton.cdiv(N, config.block_n)
    x: Tensor | TensorDescriptor = x_MK
    weight: Tensor | TensorDescriptor = weight_NK
    if tma:
        x = TensorDescriptor(x_MK, [M, K], [K, 1], [config.block_m, config.block_k])
        weight = TensorDescriptor(weight_NK, [N, K], [K, 1], [config.block_n, config.block_k])
    segments_kernel[(tiles if walk else S * tiles,)](
        x,
        weight,
        weight_NK if bias is None else bias,
        y,
        M,
        N,
        K,
        segment,
        K if walk else segment,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        TMA=tma,
        SWAP=config.swap,
        HAS_BIAS=bias is not None,
        EARLY=not walk and _early(),
        PRECISION="ieee",
        num_warps=config.warps,
        num_stages=config.stages,
    )


def walk(
    x_MK: Tensor,
    weight_NK: Tensor,
    bias: Tensor | None,
    config: Config,
    S: int,
    dtype: torch.dtype | None = None,
    tma: bool = False,
) -> Tensor:
    """[M, N] in one launch; a program adds the S segments of its tile one after another. dtype: as for `chain`.

    tma: tiles are loaded by descriptor (bf16 or f16, pointers aligned to 16 bytes, no swap).
    """
    M, N = x_MK.shape[0], weight_NK.shape[0]
    y_MN = torch.empty(M, N, dtype=dtype or x_MK.dtype, device=x_MK.device)
    if M:
        _launch(x_MK, weight_NK, bias, y_MN, config, S, walk=True, tma=tma)
    return y_MN


def split(
    x_MK: Tensor,
    weight_NK: Tensor,
    bias: Tensor | None,
    config: Config,
    S: int,
    dtype: torch.dtype | None = None,
    tma: bool = False,
) -> Tensor:
    """[M, N] in two launches: a program for each tile and segment, then the fold."""
    M, N = x_MK.shape[0], weight_NK.shape[0]
    part_SMN = torch.empty(S, M, N, dtype=torch.float32, device=x_MK.device)
    if M:
        _launch(x_MK, weight_NK, None, part_SMN, config, S, walk=False, tma=tma)
    return fold(part_SMN, bias, dtype or x_MK.dtype)


def fold(part_SMN: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """[M, N] from the float32 sums of S segments, added in ascending order, then the bias, rounded once to `dtype`."""
    S, M, N = part_SMN.shape
    y_MN = torch.empty(M, N, dtype=dtype, device=part_SMN.device)
    if M:
        fold_kernel[(triton.cdiv(M * N, 512),)](
            part_SMN,
            part_SMN if bias is None else bias,
            y_MN,
            M * N,
            N,
            S=S,
            HAS_BIAS=bias is not None,
            EARLY=_early(),
            BLOCK=512,
            num_warps=4,
            **({"launch_pdl": True} if _early() else {}),
        )
    return y_MN
