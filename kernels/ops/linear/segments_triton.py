"""Triton kernels of the linear operator where the contract cuts K into segments. M token rows, N outputs, K reduced in
S segments of L.

Each segment is a chain of its own; their sums are added in ascending order. Who adds them moves no bit: one program
that walks all segments, the last to arrive of one program each, or a second launch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.kernels.ops.boxes import Boxes
from samebits.kernels.ops.launch import Form
from samebits.kernels.ops.linear.arrivals import arrivals
from samebits.kernels.ops.linear.segments import SEGMENTS, length, segments
from samebits.kernels.ops.linear.triton import Config

SINGLE = Config(16, 32, 32, 4, 1)
"""For float32 inputs."""
GROUP = 16
"""Tiles of rows that are neighbours in launch order."""
FOLDED = 512
"""Elements of a program that folds."""


@triton.jit
def segment_sum(
    x_ptr,
    w_ptr,
    first_m,
    first_n,
    s,
    M,
    N,
    K,
    L,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TMA: tl.constexpr,
    SWAP: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The chain of one tile over segment s, from +0. TMA: x_ptr and w_ptr are descriptors."""
    m, n, k = first_m + tl.arange(0, BLOCK_M), first_n + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), tl.float32)
    if not TMA:
        x_row, w_row = x_ptr + m.to(tl.int64) * K, w_ptr + n.to(tl.int64) * K
        in_m, in_n = m < M, n < N
    for start in range(s * L, tl.minimum((s + 1) * L, K), BLOCK_K):
        # What lies outside M, N or K is zero. Rows outside reach no element that is stored.
        if TMA:
            x = x_ptr.load([first_m, start])
            w = w_ptr.load([first_n, start])
            acc = (
                tl.dot(w, x.T, acc, input_precision=PRECISION)
                if SWAP
                else tl.dot(x, w.T, acc, input_precision=PRECISION)
            )
        elif SWAP:
            w_in, x_in = in_n[:, None], in_m[None, :]
            if not EVEN_K:
                w_in, x_in = w_in & (start + k < K)[None, :], x_in & (start + k < K)[:, None]
            w = tl.load(w_row[:, None] + (start + k)[None, :], mask=w_in, other=0.0)
            x = tl.load(x_row[None, :] + (start + k)[:, None], mask=x_in, other=0.0)
            acc = tl.dot(w, x, acc, input_precision=PRECISION)
        else:
            x_in, w_in = in_m[:, None], in_n[None, :]
            if not EVEN_K:
                x_in, w_in = x_in & (start + k < K)[None, :], w_in & (start + k < K)[:, None]
            x = tl.load(x_row[:, None] + (start + k)[None, :], mask=x_in, other=0.0)
            w = tl.load(w_row[None, :] + (start + k)[:, None], mask=w_in, other=0.0)
            acc = tl.dot(x, w, acc, input_precision=PRECISION)
    return acc


@triton.jit
def put(y_ptr, b_ptr, total, at, n, inside, in_n, HAS_BIAS: tl.constexpr):
    """The sums of a tile with their bias, rounded once."""
    if HAS_BIAS:
        total += tl.load(b_ptr + n, mask=in_n, other=0.0).to(tl.float32)[None, :]
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def folded(part_ptr, at, size, inside, S: tl.constexpr):
    """The sums of a tile, ascending. Read past L1, which does not see what other multiprocessors wrote; all are asked
    for at once."""
    parts = ()
    for i in tl.static_range(S):
        parts += (tl.load(part_ptr + i * size + at, mask=inside, other=0.0, cache_modifier=".cg"),)  # type: ignore[assignment]
    total = parts[0]  # type: ignore[misc]
    for i in tl.static_range(1, S):
        total += parts[i]
    return total


@triton.jit(do_not_specialize=["M"])
def segments_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    part_ptr,
    arrived_ptr,
    M,
    N,
    K,
    L,
    S: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    WALK: tl.constexpr,
    JOIN: tl.constexpr,
    TMA: tl.constexpr,
    SWAP: tl.constexpr,
    EVEN_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EARLY: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """WALK: program (tile), all segments one after another, or the only one. Else program (segment, tile), whose sums
    go to part [S, M, N]. JOIN: the last program of a tile to arrive adds them; it is counted at arrived_ptr [tiles],
    zeros before and after. BLOCK_K divides L where S > 1, so no step reaches into the next segment."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    blocks_m, blocks_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tile, s = tl.program_id(0) % (blocks_m * blocks_n), tl.program_id(0) // (blocks_m * blocks_n)
    # Programs with the same weights are neighbours in launch order; of many rows, those at one time share rows too.
    group = tile // (GROUP * blocks_n)
    rows = tl.minimum(blocks_m - group * GROUP, GROUP)
    inner = tile % (GROUP * blocks_n)
    first_m, first_n = (group * GROUP + inner % rows) * BLOCK_M, (inner // rows) * BLOCK_N
    if WALK and S > 1:
        total = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), tl.float32)
        for each in range(S):
            acc = segment_sum(
                x_ptr, w_ptr, first_m, first_n, each, M, N, K, L,
                BLOCK_M, BLOCK_N, BLOCK_K, TMA, SWAP, EVEN_K, PRECISION,
            )  # fmt: skip
            total = tl.where(each == 0, acc, total + acc)
    else:
        total = segment_sum(
            x_ptr, w_ptr, first_m, first_n, s, M, N, K, L,
            BLOCK_M, BLOCK_N, BLOCK_K, TMA, SWAP, EVEN_K, PRECISION,
        )  # fmt: skip
    if SWAP:
        total = tl.trans(total)
    m, n = first_m + tl.arange(0, BLOCK_M), first_n + tl.arange(0, BLOCK_N)
    in_n = n < N
    inside = (m < M)[:, None] & in_n[None, :]
    at = m.to(tl.int64)[:, None] * N + n[None, :]
    size = M.to(tl.int64) * N
    if WALK:
        put(y_ptr, b_ptr, total, at, n, inside, in_n, HAS_BIAS)
    else:
        tl.store(part_ptr + s * size + at, total, mask=inside)
    if JOIN:
        # Every thread's part is stored before one of them counts.
        tl.debug_barrier()
        if tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel", scope="gpu") == S - 1:
            tl.store(arrived_ptr + tile, 0)
            joined = folded(part_ptr, at, size, inside, S)
            put(y_ptr, b_ptr, joined, at, n, inside, in_n, HAS_BIAS)


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
    """y = ((s0 + s1) + s2) + ... + bias over `size` = M x N elements, in float32, rounded once."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    if EARLY:
        tl.extra.cuda.gdc_wait()
    part = part_ptr + at
    total = tl.load(part, mask=inside, other=0.0)
    for _ in tl.static_range(1, S):
        part += size
        total += tl.load(part, mask=inside, other=0.0)
    if HAS_BIAS:
        total += tl.load(b_ptr + at % N, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=inside)


@cache
def _compiled() -> bool:
    """Not under the interpreter nor on GPUs before Hopper: they know no launch that begins while the one before it
    runs."""
    if not isinstance(fold_kernel, triton.runtime.JITFunction):
        return False
    return not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] >= 9


@cache
def _form(config: Config, S: int, walk: bool, join: bool, tma: bool, even: bool, has_bias: bool) -> Form:
    """The kernel of a configuration. even: K is a multiple of its block."""
    return Form(
        segments_kernel,
        S=S,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        GROUP=GROUP,
        WALK=walk,
        JOIN=join,
        TMA=tma,
        SWAP=config.swap,
        EVEN_K=even,
        HAS_BIAS=has_bias,
        EARLY=not walk and not join and _compiled(),
        PRECISION="ieee",
        num_warps=config.warps,
        num_stages=config.stages,
    )


def _launch(
    x_MK: Tensor,
    weight_NK: Tensor,
    bias: Tensor | None,
    y_MN: Tensor,
    part_SMN: Tensor | None,
    arrived: Tensor | None,
    config: Config,
    tma: bool,
) -> None:
    """part_SMN: None walks; arrived: the last to arrive folds, else nobody does."""
    (M, K), N = x_MK.shape, weight_NK.shape[0]
    S, L = segments(K), length(K)
    if S > 1:
        config = replace(config, block_k=min(config.block_k, L & -L))
    tiles = -(-M // config.block_m) * -(-N // config.block_n)
    walk, join = part_SMN is None, arrived is not None
    form = _form(config, S, walk, join, tma, K % config.block_k == 0, bias is not None)
    tensors = (
        weight_NK if bias is None else bias,
        y_MN,
        y_MN if part_SMN is None else part_SMN,
        y_MN if arrived is None else arrived,
    )
    grid, numbers = (tiles if walk else S * tiles, 1, 1), (M, N, K, L)
    if not tma:
        form(grid, (x_MK, weight_NK, *tensors), numbers)
        return
    x = Boxes(x_MK, M, K, K, (x_MK.dtype, config.block_m, config.block_k))
    form(grid, tensors, numbers, (x, Boxes(weight_NK, N, K, K, (x_MK.dtype, config.block_n, config.block_k))))


def walk(
    x_MK: Tensor,
    weight_NK: Tensor,
    bias: Tensor | None,
    config: Config,
    dtype: torch.dtype | None = None,
    tma: bool = False,
) -> Tensor:
    """[M, N] in one launch; a program adds the segments of its tile one after another. dtype: as for `chain`.

    tma: tiles are loaded by descriptor (bf16 or f16, pointers aligned to 16 bytes, K a multiple of 8).
    """
    y_MN = torch.empty(x_MK.shape[0], weight_NK.shape[0], dtype=dtype or x_MK.dtype, device=x_MK.device)
    if x_MK.shape[0]:
        single = x_MK.dtype == torch.float32
        _launch(x_MK, weight_NK, bias, y_MN, None, None, SINGLE if single else config, tma)
    return y_MN


def split(
    x_MK: Tensor,
    weight_NK: Tensor,
    bias: Tensor | None,
    config: Config,
    dtype: torch.dtype | None = None,
    tma: bool = False,
    join: bool = True,
) -> Tensor:
    """[M, N] by a program for each tile and segment. bf16 or f16; dtype, tma: as for `walk`.

    join: in one launch, where there are counters for it; else, or where not, a second launch folds.
    """
    M, N = x_MK.shape[0], weight_NK.shape[0]
    part_SMN = torch.empty(SEGMENTS, M, N, dtype=torch.float32, device=x_MK.device)
    if M == 0:
        return fold(part_SMN, bias, dtype or x_MK.dtype)
    tiles = triton.cdiv(M, config.block_m) * triton.cdiv(N, config.block_n)
    arrived = arrivals(x_MK.device, tiles) if join else None
    if arrived is None:
        _launch(x_MK, weight_NK, None, part_SMN, part_SMN, None, config, tma)
        return fold(part_SMN, bias, dtype or x_MK.dtype)
    y_MN = torch.empty(M, N, dtype=dtype or x_MK.dtype, device=x_MK.device)
    _launch(x_MK, weight_NK, bias, y_MN, part_SMN, arrived, config, tma)
    return y_MN


def fold(part_SMN: Tensor, bias: Tensor | None, dtype: torch.dtype, early: bool = True) -> Tensor:
    """[M, N] from the float32 sums of S segments, added in ascending order, then the bias, rounded once to `dtype`.

    early: launched while the kernel before it runs, and waits there for all it wrote.
    """
    S, M, N = part_SMN.shape
    y_MN = torch.empty(M, N, dtype=dtype, device=part_SMN.device)
    if M:
        form = _fold_form(S, bias is not None, early and _compiled())
        form((-(-M * N // FOLDED), 1, 1), (part_SMN, part_SMN if bias is None else bias, y_MN), (M * N, N))
    return y_MN


@cache
def _fold_form(S: int, has_bias: bool, early: bool) -> Form:
    """early: by programmatic dependent launch."""
    options = {"launch_pdl": True} if early else {}
    return Form(fold_kernel, S=S, HAS_BIAS=has_bias, EARLY=early, BLOCK=FOLDED, num_warps=4, **options)
