"""rms_norm and its form with residual as torch.library operators."""

from __future__ import annotations

from typing import Any, overload

import torch

from samebits.kernels.ops.check import refuse, require_dense, require_float, require_same
from samebits.kernels.ops.ran import ran
from samebits.kernels.ops.register import dispatched
from samebits.kernels.ops.rms_norm.contract import contract, contract_backward

NAME = "rms_norm"


def check(x: torch.Tensor, weight: torch.Tensor | None, residual: torch.Tensor | None = None) -> None:
    """Refuse what the contract does not cover."""
    require_float(NAME, "x", x)
    require_same(NAME, x=x, weight=weight, residual=residual)
    if not (x.dim() >= 1 and x.shape[-1] >= 1):
        refuse(NAME, f"x has shape {tuple(x.shape)}; it needs a last dim of at least one element")
    if not (weight is None or tuple(weight.shape) == (x.shape[-1],)):
        refuse(NAME, f"x {tuple(x.shape)} needs a weight [{x.shape[-1]}]")
    if not (residual is None or residual.shape == x.shape):
        refuse(NAME, f"x {tuple(x.shape)} and residual differ in shape")
    for name, value in (("x", x), ("weight", weight), ("residual", residual)):
        if value is not None:
            require_dense(NAME, name, value)


@dispatched("rms_norm")
def plain_op(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """y of README.md."""
    check(x, weight)
    ran("rms_norm")
    if x.is_cuda:
        from samebits.kernels.ops.rms_norm.triton import run

        return run(x, weight, eps)  # type: ignore[return-value]
    return contract(x, weight, eps)  # type: ignore[return-value]


@dispatched("add_rms_norm")
def add_op(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, s) of README.md."""
    check(x, weight, residual)
    ran("rms_norm with residual")
    if x.is_cuda:
        from samebits.kernels.ops.rms_norm.triton import run

        return run(x, weight, eps, residual)  # type: ignore[return-value]
    return contract(x, weight, eps, residual)  # type: ignore[return-value]


@dispatched("rms_norm_backward")
def backward_op(
    grad: torch.Tensor, s: torch.Tensor, weight: torch.Tensor | None, eps: float, grad_s: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(gradient of s, gradient of the weight or an empty tensor)."""
    if s.is_cuda:
        from samebits.kernels.ops.rms_norm.triton import backward

        ds, dw = backward(grad, s, weight, eps, grad_s)
    else:
        ds, dw = contract_backward(grad, s, weight, eps, grad_s)
    return ds.contiguous(), s.new_empty(0) if dw is None else dw


@plain_op.register_fake
def _(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@add_op.register_fake
def _(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty(x.shape, dtype=x.dtype, device=x.device)


@backward_op.register_fake
def _(
    grad: torch.Tensor, s: torch.Tensor, weight: torch.Tensor | None, eps: float, grad_s: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    ds = torch.empty(s.shape, dtype=s.dtype, device=s.device)
    return ds, s.new_empty(0) if weight is None else torch.empty(weight.shape, dtype=weight.dtype, device=s.device)


def save_plain(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    """Keep what the backward needs."""
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def plain_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Gradients of (x, weight, eps)."""
    x, weight = ctx.saved_tensors
    ds, dw = backward_op(grad, x, weight, ctx.eps, None)
    return ds, None if weight is None else dw, None


def save_add(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Keep the rounded sum: it lives on as the next residual anyway."""
    _, _, weight, ctx.eps = inputs
    ctx.save_for_backward(output[1], weight)


def add_backward(ctx: Any, grad: torch.Tensor, grad_s: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """Gradients of (x, residual, weight, eps)."""
    s, weight = ctx.saved_tensors
    ds, dw = backward_op(grad, s, weight, ctx.eps, grad_s)
    return ds, ds, None if weight is None else dw, None


plain_op.register_autograd(plain_backward, setup_context=save_plain)
add_op.register_autograd(add_backward, setup_context=save_add)


@overload
def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float, residual: None = None) -> torch.Tensor: ...
@overload
def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]: ...
def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """RMSNorm by contract (README.md): x, residual [..., D], weight [D]; returns y, or (y, x + residual)."""
    return plain_op(x, weight, eps) if residual is None else add_op(x, residual, weight, eps)  # type: ignore[no-any-return]
