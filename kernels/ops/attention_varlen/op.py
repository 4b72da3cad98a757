"""Varlen causal attention: `samebits::attention_varlen`, with fake and autograd. T tokens, H query heads, G key
heads, D head size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.kernels.ops.attention.checks import check as check_paged
from samebits.kernels.ops.attention_varlen.contract import check, contract, contract_backward
from samebits.kernels.ops.ran import ran
from samebits.kernels.ops.register import dispatched


@dispatched("attention_varlen")
def attention_varlen_op(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seq_len: int, scale: float) -> Tensor:
    """See README.md."""
    check(q, k, v, cu_seqlens)
    check_paged(q, k[:, None], v[:, None], cu_seqlens[:-1, None], cu_seqlens, cu_seqlens[1:], scale)
    if q.is_cuda:
        from samebits.kernels.ops.attention_varlen.dispatch import run

        return run(q, k, v, cu_seqlens, max_seq_len, scale)
    ran("attention_varlen contract")
    return contract(q, k, v, cu_seqlens, max_seq_len, scale)


@attention_varlen_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seq_len: int, scale: float) -> Tensor:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


@dispatched("attention_varlen_backward")
def backward_op(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seq_len: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    if q.is_cuda:
        from samebits.kernels.ops.attention_varlen.triton import backward

        return backward(grad, q, k, v, cu_seqlens, scale)
    return contract_backward(grad, q, k, v, cu_seqlens, max_seq_len, scale)


@backward_op.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seq_len: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
    return dq, dk, dv


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, cu_seqlens, ctx.max_seq_len, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, cu_seqlens)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, cu_seqlens = ctx.saved_tensors
    return *backward_op(grad, q, k, v, cu_seqlens, ctx.max_seq_len, ctx.scale), None, None, None


attention_varlen_op.register_autograd(_backward, setup_context=_save)


def attention_varlen(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seq_len: int, scale: float) -> Tensor:
    """Causal attention inside each sequence, by the contract in kernels/ops/attention/README.md: [T, H, D] in the
    dtype of q.

    q [T, H, D], k, v [T, G, D], heads side by side; cu_seqlens [B + 1] int32 starts at 0 and ends at T; max_seq_len
    bounds the lengths.
    """
    out: Tensor = attention_varlen_op(q, k, v, cu_seqlens, max_seq_len, scale)
    return out
