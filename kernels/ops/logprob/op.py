"""logprob as a torch.library operator."""

from __future__ import annotations

from typing import Any

import torch

from samebits.kernels.ops.check import refuse, require, require_dense, require_float
from samebits.kernels.ops.logprob.contract import contract_backward, contract_with_state
from samebits.kernels.ops.ran import ran
from samebits.kernels.ops.register import dispatched

NAME = "logprob"


def check(logits: torch.Tensor, targets: torch.Tensor, temperature: torch.Tensor | None) -> None:
    """Refuse what the contract does not cover."""
    require_float(NAME, "logits", logits)
    if logits.dim() != 2 or logits.shape[1] < 1 or tuple(targets.shape) != logits.shape[:1]:
        shapes = f"logits {tuple(logits.shape)}, targets {tuple(targets.shape)}"
        refuse(NAME, f"{shapes}: [M, V] and [M] are needed")
    require_dense(NAME, "logits", logits)
    if targets.dtype not in (torch.int32, torch.int64):
        refuse(NAME, f"targets are {targets.dtype}; int32 or int64 is needed")
    if targets.device != logits.device:
        refuse(NAME, f"targets are on {targets.device} but logits on {logits.device}")
    if temperature is not None:
        fits = (
            temperature.dtype == torch.float32
            and temperature.shape == targets.shape
            and temperature.device == logits.device
        )
        require(fits, NAME, f"temperature must be float32 {tuple(targets.shape)} on {logits.device}")
    if not logits.is_cuda and targets.numel():
        low, high = int(targets.min()), int(targets.max())
        require(
            low >= 0 and high < logits.shape[1],
            NAME,
            f"targets {low}..{high} leave the vocabulary of {logits.shape[1]}",
        )


@dispatched("logprob")
def forward_op(
    logits: torch.Tensor, targets: torch.Tensor, temperature: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logprob, top, total) of README.md; the last two are for the backward."""
    return with_state(logits, targets, temperature)


def with_state(
    logits: torch.Tensor, targets: torch.Tensor, temperature: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The operator's body."""
    check(logits, targets, temperature)
    ran(NAME)
    if logits.is_cuda:
        from samebits.kernels.ops.logprob.triton import run_with_state

        return run_with_state(logits, targets.contiguous(), temperature)
    return contract_with_state(logits, targets, temperature)


@dispatched("logprob_backward")
def backward_op(
    grad: torch.Tensor,
    logits: torch.Tensor,
    targets: torch.Tensor,
    temperature: torch.Tensor | None,
    top: torch.Tensor,
    total: torch.Tensor,
) -> torch.Tensor:
    """Gradient of the logits."""
    if logits.is_cuda:
        from samebits.kernels.ops.logprob.triton import backward

        return backward(grad, logits, targets, temperature, top, total)
    return contract_backward(grad, logits, targets, temperature, top, total)


@forward_op.register_fake
def _(
    logits: torch.Tensor, targets: torch.Tensor, temperature: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    row = logits.new_empty(targets.shape, dtype=torch.float32)
    return row, torch.empty_like(row), torch.empty_like(row)


@backward_op.register_fake
def _(
    grad: torch.Tensor,
    logits: torch.Tensor,
    targets: torch.Tensor,
    temperature: torch.Tensor | None,
    top: torch.Tensor,
    total: torch.Tensor,
) -> torch.Tensor:
    return torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)


def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    """Keep the logits and the two numbers per row that turn them into probabilities."""
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*inputs, *output[1:])


def backward(ctx: Any, grad: torch.Tensor, *_: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """Gradients of (logits, targets, temperature)."""
    return backward_op(grad, *ctx.saved_tensors), None, None


forward_op.register_autograd(backward, setup_context=save)


def logprob(
    logits: torch.Tensor, targets: torch.Tensor, temperature: torch.Tensor | float | None = None
) -> torch.Tensor:
    """Logprob of each target by contract (README.md), nats, float32 [M].

    Args:
        logits: [M, V] float32, bf16 or float16.
        targets: [M] int64 or int32.
        temperature: float32 [M], or one number for all rows; None and 1.0 give the same bits.
    """
    if isinstance(temperature, (int, float)):
        require(temperature > 0, NAME, f"temperature {temperature}: a sampled token needs one above 0")
        temperature = None if temperature == 1.0 else logits.new_full(targets.shape, temperature, dtype=torch.float32)
    return forward_op(logits, targets, temperature)[0]  # type: ignore[no-any-return]


def direct(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """`logprob` without a gradient and past the dispatcher: for a sampler, once per step of an engine."""
    return with_state(logits, targets)[0]
