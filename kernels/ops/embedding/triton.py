"""embedding on CUDA: one block per token and tile of columns; the backward adds the tokens of a row in order."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from samebits.kernels.ops.launch import Form

TILE = 1024
BACKWARD_TILE = 256


@triton.jit
def embedding_kernel(ids_ptr, table_ptr, y_ptr, vocabulary, width, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * TILE + tl.arange(0, TILE)
    token = tl.load(ids_ptr + row).to(tl.int64)
    known = col < tl.where((token >= 0) & (token < vocabulary), width, 0)
    value = tl.load(table_ptr + token * width + col, mask=known, other=float("nan"))
    tl.store(y_ptr + row * width + col, value, mask=col < width)


@cache
def form_of() -> Form:
    """The kernel."""
    return Form(embedding_kernel, TILE=TILE, num_warps=4)


def run(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """See README.md."""
    width = table.shape[1]
    y = torch.empty((*ids.shape, width), dtype=table.dtype, device=table.device)
    if y.numel():
        grid = (ids.numel(), triton.cdiv(width, TILE), 1)
        form_of()(grid, (ids.contiguous(), table, y), (table.shape[0], width))
    return y


@triton.jit
def backward_kernel(sorted_ptr, order_ptr, grad_ptr, dtable_ptr, tokens, vocabulary, width, TILE: tl.constexpr):
    first = tl.program_id(0)
    col = tl.program_id(1) * TILE + tl.arange(0, TILE)
    token = tl.load(sorted_ptr + first).to(tl.int64)
    before = tl.load(sorted_ptr + first - 1, mask=first > 0, other=-1).to(tl.int64)
    if (token != before) & (token >= 0) & (token < vocabulary):
        total = tl.zeros((TILE,), tl.float32)
        at = first
        here = token
        while here == token:
            row = tl.load(order_ptr + at).to(tl.int64)
            total += tl.load(grad_ptr + row * width + col, mask=col < width, other=0.0).to(tl.float32)
            at += 1
            here = tl.load(sorted_ptr + at, mask=at < tokens, other=-1).to(tl.int64)
        tl.store(dtable_ptr + token * width + col, total.to(dtable_ptr.dtype.element_ty), mask=col < width)


def backward(grad: torch.Tensor, ids: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """As `contract_backward`: a stable sort, then one block per distinct token."""
    width = grad.shape[-1]
    dtable = torch.zeros((vocabulary, width), dtype=grad.dtype, device=grad.device)
    if ids.numel():
        ordered, order = torch.sort(ids.flatten(), stable=True)
        grid = (ids.numel(), triton.cdiv(width, BACKWARD_TILE))
        backward_kernel[grid](
            ordered, order, grad.contiguous(), dtable, ids.numel(), vocabulary, width, TILE=BACKWARD_TILE, num_warps=2
        )
    return dtable
