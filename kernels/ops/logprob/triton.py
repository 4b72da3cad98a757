"""logprob on CUDA: one block per row and chunk, so that 8 rows of 152k fill a GPU, then one small block per row."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from samebits.kernels.ops.lanes import aligned, next_power_of_two
from samebits.kernels.ops.lanes_triton import fold_lanes, halve, lane_sum
from samebits.kernels.ops.launch import Form
from samebits.kernels.ops.logprob.contract import CHUNK, LANES, UNIT
from samebits.kernels.ops.rounding_triton import rounded


@triton.jit
def chunk_state(z, PASSES: tl.constexpr, LANES: tl.constexpr, UNIT: tl.constexpr):
    """(m, s) of one chunk: z float32 [PASSES * LANES * UNIT]."""
    m = tl.max(z)
    e = tl.exp(z - tl.where(m == float("-inf"), 0.0, m))
    passes = tl.permute(tl.reshape(e, (PASSES, LANES * UNIT)), (1, 0))
    folded = halve(tl.reshape(passes, (1, LANES * UNIT, PASSES)), 1, LANES * UNIT, PASSES)
    return m, tl.sum(lane_sum(folded, 1, LANES, UNIT))


@triton.jit
def finish(z_target, top, total):
    """The result of one row from its merged state."""
    result = (z_target.to(tl.float64) - top.to(tl.float64) - tl.log(total.to(tl.float64))).to(tl.float32)
    return rounded(result, tl.float32)


@triton.jit
def merged(m, s, CHUNKS: tl.constexpr):
    """(top, total) of one row from its chunks [CHUNKS], padded with m = -inf, s = 0."""
    top = tl.max(m)
    return top, fold_lanes(s * tl.exp(m - top), CHUNKS)


@triton.jit
def chunk_kernel(
    logits_ptr,
    temperature_ptr,
    m_ptr,
    s_ptr,
    vocabulary,
    stride,
    used,
    PASSES: tl.constexpr,
    LANES: tl.constexpr,
    UNIT: tl.constexpr,
    HOT: tl.constexpr,
):
    CHUNK: tl.constexpr = PASSES * LANES * UNIT
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    i = chunk * CHUNK + tl.arange(0, CHUNK)
    z = tl.load(logits_ptr + row.to(tl.int64) * stride + i, mask=i < vocabulary, other=float("-inf")).to(tl.float32)
    if HOT:
        z = tl.div_rn(z, tl.load(temperature_ptr + row))
    m, s = chunk_state(z, PASSES, LANES, UNIT)
    tl.store(m_ptr + row * used + chunk, m)
    tl.store(s_ptr + row * used + chunk, s)


@triton.jit
def merge_kernel(
    logits_ptr,
    targets_ptr,
    temperature_ptr,
    result_ptr,
    top_ptr,
    total_ptr,
    m_ptr,
    s_ptr,
    vocabulary,
    stride,
    used,
    CHUNKS: tl.constexpr,
    HOT: tl.constexpr,
):
    row = tl.program_id(0)
    c = tl.arange(0, CHUNKS)
    m = tl.load(m_ptr + row * used + c, mask=c < used, other=float("-inf"))
    top, total = merged(m, tl.load(s_ptr + row * used + c, mask=c < used, other=0.0), CHUNKS)
    target = tl.load(targets_ptr + row).to(tl.int64)
    known = (target >= 0) & (target < vocabulary)
    z = tl.load(logits_ptr + row.to(tl.int64) * stride + target, mask=known, other=float("nan")).to(tl.float32)
    if HOT:
        z = tl.div_rn(z, tl.load(temperature_ptr + row))
    tl.store(result_ptr + row, finish(z, top, total))
    tl.store(top_ptr + row, top)
    tl.store(total_ptr + row, total)


@cache
def chunk_of(hot: bool) -> Form:
    """The kernel of chunks. hot: with a temperature."""
    sizes = {"PASSES": CHUNK // (LANES * UNIT), "LANES": LANES, "UNIT": UNIT}
    return Form(chunk_kernel, **sizes, HOT=hot, num_warps=LANES // 32, enable_fp_fusion=False)


@cache
def merge_of(used: int, hot: bool) -> Form:
    """The kernel that merges so many chunks of a row."""
    return Form(merge_kernel, CHUNKS=next_power_of_two(used), HOT=hot, num_warps=1, enable_fp_fusion=False)


def merge(
    logits: torch.Tensor, targets: torch.Tensor, temperature: torch.Tensor | None, m: torch.Tensor, s: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logprob, top, total) from the chunks m, s [M, C]."""
    rows, used = m.shape
    result, top, total = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(3))
    if rows:
        merge_of(used, temperature is not None)(
            (rows, 1, 1),
            (logits, targets, m if temperature is None else temperature, result, top, total, m, s),
            (logits.shape[1], logits.stride(0), used),
        )
    return result, top, total


def run_with_state(
    logits: torch.Tensor, targets: torch.Tensor, temperature: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logprob, top, total), each float32 [M]. Rows that are misaligned or no multiple of 16 wide are copied first:
    slower, the same bits.
    """
    rows, vocabulary = logits.shape
    used = -(-vocabulary // CHUNK)
    # Two tensors, so that both begin aligned at any number of rows: one form of each kernel.
    m, s = (torch.empty((rows, used), dtype=torch.float32, device=logits.device) for _ in range(2))
    source = aligned(logits)
    if rows:
        chunk_of(temperature is not None)(
            (rows, used, 1),
            (source, m if temperature is None else temperature, m, s),  # not read where there is none
            (vocabulary, source.stride(0), used),
        )
    return merge(logits, targets, temperature, m, s)


def run(logits: torch.Tensor, targets: torch.Tensor, temperature: torch.Tensor | None = None) -> torch.Tensor:
    """See README.md."""
    return run_with_state(logits, targets, temperature)[0]


@triton.jit
def backward_kernel(
    grad_ptr,
    logits_ptr,
    targets_ptr,
    temperature_ptr,
    top_ptr,
    total_ptr,
    dlogits_ptr,
    vocabulary,
    stride,
    TILE: tl.constexpr,
    HOT: tl.constexpr,
):
    row = tl.program_id(0)
    i = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = i < vocabulary
    scale = tl.load(grad_ptr + row)
    z = tl.load(logits_ptr + row.to(tl.int64) * stride + i, mask=inside, other=0.0).to(tl.float32)
    if HOT:
        temperature = tl.load(temperature_ptr + row)
        z = tl.div_rn(z, temperature)
        scale = scale / temperature
    p = tl.exp(z - tl.load(top_ptr + row)) / tl.load(total_ptr + row)
    hit = tl.where(i == tl.load(targets_ptr + row), 1.0, 0.0)
    tl.store(
        dlogits_ptr + row.to(tl.int64) * vocabulary + i,
        ((hit - p) * scale).to(dlogits_ptr.dtype.element_ty),
        mask=inside,
    )


def backward(
    grad: torch.Tensor,
    logits: torch.Tensor,
    targets: torch.Tensor,
    temperature: torch.Tensor | None,
    top: torch.Tensor,
    total: torch.Tensor,
) -> torch.Tensor:
    """As `contract_backward`."""
    rows, vocabulary = logits.shape
    dlogits = torch.empty((rows, vocabulary), dtype=logits.dtype, device=logits.device)
    if rows:
        backward_kernel[(rows, triton.cdiv(vocabulary, 2048))](
            grad.contiguous(),
            logits,
            targets,
            temperature,
            top,
            total,
            dlogits,
            vocabulary,
            logits.stride(0),
            TILE=2048,
            HOT=temperature is not None,
            num_warps=8,
        )
    return dlogits
