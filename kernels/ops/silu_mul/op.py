"""silu_mul as a torch.library operator."""

from __future__ import annotations

from typing import Any

import torch

from samebits.kernels.ops.check import refuse, require_dense, require_float, require_same
from samebits.kernels.ops.ran import ran
from samebits.kernels.ops.register import dispatched
from samebits.kernels.ops.silu_mul.contract import contract, contract_backward

NAME = "silu_mul"


@dispatched("silu_mul")
def forward_op(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """y of README.md."""
    require_float(NAME, "gate", gate)
    require_same(NAME, gate=gate, up=up)
    if not (gate.dim() >= 1 and gate.shape == up.shape):
        refuse(NAME, f"gate {tuple(gate.shape)} and up {tuple(up.shape)} must have one shape")
    require_dense(NAME, "gate", gate)
    require_dense(NAME, "up", up)
    ran(NAME)
    if gate.is_cuda:
        from samebits.kernels.ops.silu_mul.triton import run

        return run(gate, up)
    return contract(gate, up)


@dispatched("silu_mul_backward")
def backward_op(grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of gate and up."""
    if gate.is_cuda:
        from samebits.kernels.ops.silu_mul.triton import backward

        return backward(grad, gate, up)
    dgate, dup = contract_backward(grad, gate, up)
    return dgate.contiguous(), dup.contiguous()


@forward_op.register_fake
def _(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)


@backward_op.register_fake
def _(grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(gate.shape, dtype=gate.dtype, device=gate.device), torch.empty(
        up.shape, dtype=up.dtype, device=up.device
    )


def save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    """Keep the inputs; everything else is computed again."""
    ctx.save_for_backward(*inputs)


def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of (gate, up)."""
    dgate, dup = backward_op(grad, *ctx.saved_tensors)
    return dgate, dup


forward_op.register_autograd(backward, setup_context=save)


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up by contract (README.md); gate, up [..., I] of one dtype."""
    return forward_op(gate, up)  # type: ignore[no-any-return]
