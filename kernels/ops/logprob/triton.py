"""logprob on CUDA: one block per row and chunk, so that 8 rows of 152k fill a GPU, then one small block per row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from samebits.kernels.ops.lanes import unit_of
from samebits.kernels.ops.logprob.contract import CHUNK, LANES
from samebits.kernels.ops.logprob.contract_triton import chunk_state, merge


@triton.jit
def chunk_kernel(
    logits_ptr, temperature_ptr, m_ptr, s_ptr, vocabulary, stride, used, PASSES: tl.constexpr, LANES: tl.constexpr, UNIT: tl.constexpr,
    HOT: tl.constexpr, IN_WARP: tl.constexpr,
):  # fmt: skip
    CHUNK: tl.constexpr = PASSES * LANES * UNIT
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    i = chunk * CHUNK + tl.arange(0, CHUNK)
    z = tl.load(logits_ptr + row.to(tl.int64) * stride + i, mask=i < vocabulary, other=float("-inf")).to(tl.float32)
    if HOT:
        z = tl.div_rn(z, tl.load(temperature_ptr + row))
    m, s = chunk_state(z, PASSES, LANES, UNIT, IN_WARP)
    tl.store(m_ptr + row * used + chunk, m)
    tl.store(s_ptr + row * used + chunk, s)


def run_with_state(
    logits: torch.Tensor, targets: torch.Tensor, temperature: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logprob, top, total), each float32 [M]. Misaligned rows take the written-out folds: slower, the same bits."""
    rows, vocabulary = logits.shape
    unit = unit_of(logits.dtype)
    used = -(-vocabulary // CHUNK)
    m, s = torch.empty((2, rows, used), dtype=torch.float32, device=logits.device)
    aligned = logits.data_ptr() % 16 == 0 and logits.stride(0) % 16 == 0 and vocabulary % 16 == 0
    if rows:
        chunk_kernel[(rows, used)](
            logits, temperature, m, s, vocabulary, logits.stride(0), used, PASSES=CHUNK // (LANES * unit), LANES=LANES, UNIT=unit,
            HOT=temperature is not None, IN_WARP=aligned, num_warps=LANES // 32, enable_fp_fusion=False,
        )  # fmt: skip
    return merge(logits, targets, temperature, m, s)


def run(logits: torch.Tensor, targets: torch.Tensor, temperature: torch.Tensor | None = None) -> torch.Tensor:
    """See README.md."""
    return run_with_state(logits, targets, temperature)[0]


@triton.jit
def backward_kernel(
    grad_ptr, logits_ptr, targets_ptr, temperature_ptr, top_ptr, total_ptr, dlogits_ptr, vocabulary, stride, TILE: tl.constexpr,
    HOT: tl.constexpr,
):  # fmt: skip
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
    tl.store(dlogits_ptr + row.to(tl.int64) * vocabulary + i, ((hit - p) * scale).to(dlogits_ptr.dtype.element_ty), mask=inside)


def backward(
    grad: torch.Tensor, logits: torch.Tensor, targets: torch.Tensor, temperature: torch.Tensor | None, top: torch.Tensor, total: torch.Tensor
) -> torch.Tensor:
    """As `contract_backward`."""
    rows, vocabulary = logits.shape
    dlogits = torch.empty((rows, vocabulary), dtype=logits.dtype, device=logits.device)
    if rows:
        backward_kernel[(rows, triton.cdiv(vocabulary, 2048))](
            grad.contiguous(), logits, targets, temperature, top, total, dlogits, vocabulary, logits.stride(0), TILE=2048,
            HOT=temperature is not None, num_warps=8,
        )  # fmt: skip
    return dlogits
