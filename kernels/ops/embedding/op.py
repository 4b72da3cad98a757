"""embedding as a torch.library operator."""

from __future__ import annotations

from typing import Any

import torch

from samebits.kernels.ops.check import refuse, require_float
from samebits.kernels.ops.embedding.contract import contract, contract_backward
from samebits.kernels.ops.ran import ran
from samebits.kernels.ops.register import dispatched

NAME = "embedding"


@dispatched("embedding")
def forward_op(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rows of README.md."""
    require_float(NAME, "table", table)
    if not (table.dim() == 2 and table.is_contiguous()):
        refuse(NAME, f"table {tuple(table.shape)} must be a contiguous [V, D]")
    if ids.dtype not in (torch.int32, torch.int64):
        refuse(NAME, f"ids are {ids.dtype}; int32 or int64 is needed")
    if ids.device != table.device:
        refuse(NAME, f"ids are on {ids.device} but table is on {table.device}")
    ran(NAME)
    if table.is_cuda:
        from samebits.kernels.ops.embedding.triton import run

        return run(ids, table)
    if ids.numel():
        low, high = int(ids.min()), int(ids.max())
        if not (low >= 0 and high < table.shape[0]):
            refuse(NAME, f"ids {low}..{high} leave the table of {table.shape[0]} rows")
    return contract(ids, table)


@dispatched("embedding_backward")
def backward_op(grad: torch.Tensor, ids: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Gradient of the table."""
    if grad.is_cuda:
        from samebits.kernels.ops.embedding.triton import backward

        return backward(grad, ids, vocabulary)
    return contract_backward(grad, ids, vocabulary)


@forward_op.register_fake
def _(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return torch.empty((*ids.shape, table.shape[1]), dtype=table.dtype, device=table.device)


@backward_op.register_fake
def _(grad: torch.Tensor, ids: torch.Tensor, vocabulary: int) -> torch.Tensor:
    return torch.empty((vocabulary, grad.shape[-1]), dtype=grad.dtype, device=grad.device)


def save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    """The ids and the number of rows are all the backward needs."""
    ids, table = inputs
    ctx.save_for_backward(ids)
    ctx.vocabulary = table.shape[0]


def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor]:
    """Gradients of (ids, table)."""
    (ids,) = ctx.saved_tensors
    return None, backward_op(grad, ids, ctx.vocabulary)


forward_op.register_autograd(backward, setup_context=save)


def embedding(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """table[ids] by contract (README.md): ids [...], table [V, D] -> [..., D]."""
    return forward_op(ids, table)  # type: ignore[no-any-return]
