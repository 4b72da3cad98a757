"""The linear operator: `samebits::linear`, functional, with fake and autograd. M rows, N outputs, K reduced."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.kernels.ops.linear.checks import check
from samebits.kernels.ops.linear.contract import contract, contract_backward, contract_wide
from samebits.kernels.ops.ran import ran
from samebits.kernels.ops.register import dispatched


@dispatched("linear")
def linear_op(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See README.md."""
    return direct(x, weight, bias)


def direct(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear` without a gradient and past the dispatcher: for an engine's lm_head, which no graph holds."""
    check(x, weight, bias)
    if x.is_cuda:
        from samebits.kernels.ops.linear.dispatch import run

        return run(x, weight, bias)
    ran("linear contract")
    return contract(x, weight, bias)


@linear_op.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight, bias)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Plain matrix products, only those that are asked for."""
    x, weight, bias = ctx.saved_tensors
    grad_x, grad_weight, grad_bias = contract_backward(grad, x, weight, bias, ctx.needs_input_grad)
    return grad_x, grad_weight, grad_bias


linear_op.register_autograd(_backward, setup_context=_save)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., K] times weight [N, K] transposed plus bias [N], by the contract in README.md: [..., N] in the dtype
    of x."""
    y: Tensor = linear_op(x, weight, bias)
    return y


@dispatched("linear_float32")
def wide_op(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See README.md."""
    check(x, weight, bias)
    if x.is_cuda:
        from samebits.kernels.ops.linear.dispatch import run_wide

        return run_wide(x, weight, bias)
    ran("linear float32 contract")
    return contract_wide(x, weight, bias)


@wide_op.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=torch.float32)


def _wide_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """As for linear, from the gradient rounded to the dtype of x."""
    return _backward(ctx, grad.to(ctx.saved_tensors[0].dtype))


wide_op.register_autograd(_wide_backward, setup_context=_save)


def linear_float32(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear` without its last rounding: float32 [..., N], the accumulator as it is. For an lm_head in float32."""
    y: Tensor = wide_op(x, weight, bias)
    return y
