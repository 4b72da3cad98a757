"""rotary as a torch.library operator."""

from __future__ import annotations

from typing import Any

import torch

from samebits.kernels.ops.check import refuse, require, require_dense, require_float, require_same
from samebits.kernels.ops.ran import ran
from samebits.kernels.ops.register import dispatched
from samebits.kernels.ops.rotary.contract import contract, contract_backward

NAME = "rotary"


def check(q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cache: torch.Tensor) -> None:
    """Refuse what the contract does not cover."""
    require_float(NAME, "q", q)
    require_same(NAME, q=q, k=k)
    fits = (
        q.dim() == k.dim() == 3
        and q.shape[0] == k.shape[0]
        and q.shape[2] == k.shape[2]
        and tuple(positions.shape) == (q.shape[0],)
    )
    if not fits:
        refuse(NAME, f"{_shapes(q, k, positions, cache)}: q [T, H, D], k [T, G, D] and positions [T] are needed")
    if not (cache.dim() == 2 and cache.shape[1] % 2 == 0 and 0 < cache.shape[1] <= q.shape[2]):
        refuse(NAME, f"{_shapes(q, k, positions, cache)}: cache is [P, R], R even and <= D")
    if cache.dtype not in (torch.float32, q.dtype):
        refuse(NAME, f"cache is {cache.dtype}; it must be float32 or the dtype of q, {q.dtype}")
    if positions.dtype not in (torch.int32, torch.int64):
        refuse(NAME, f"positions are {positions.dtype}; int32 or int64 is needed")
    if not (positions.device == q.device == cache.device):
        refuse(NAME, f"q is on {q.device}, positions on {positions.device}, cache on {cache.device}")
    require(cache.is_contiguous() and positions.is_contiguous(), NAME, "cache and positions must be contiguous")
    require_dense(NAME, "q", q)
    require_dense(NAME, "k", k)
    if not q.is_cuda and positions.numel():
        low, high = int(positions.min()), int(positions.max())
        if not (low >= 0 and high < cache.shape[0]):
            refuse(NAME, f"positions {low}..{high} leave the cache of {cache.shape[0]} rows")


def _shapes(q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cache: torch.Tensor) -> str:
    return f"q {tuple(q.shape)}, k {tuple(k.shape)}, positions {tuple(positions.shape)}, cache {tuple(cache.shape)}"


@dispatched("rotary")
def forward_op(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(q', k') of README.md."""
    check(q, k, positions, cache)
    ran(NAME)
    if q.is_cuda:
        from samebits.kernels.ops.rotary.triton import run

        return run(q, k, positions, cache)
    return contract(q, k, positions, cache)


@dispatched("rotary_backward")
def backward_op(
    grad_q: torch.Tensor, grad_k: torch.Tensor, positions: torch.Tensor, cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of q and k."""
    if grad_q.is_cuda:
        from samebits.kernels.ops.rotary.triton import backward

        return backward(grad_q, grad_k, positions, cache)
    return contract_backward(grad_q, grad_k, positions, cache)


@forward_op.register_fake
@backward_op.register_fake
def _(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device), torch.empty(k.shape, dtype=k.dtype, device=k.device)


def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    """The angles are all the backward needs."""
    ctx.save_for_backward(*inputs[2:])


def backward(ctx: Any, grad_q: torch.Tensor, grad_k: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Gradients of (q, k, positions, cache)."""
    dq, dk = backward_op(grad_q, grad_k, *ctx.saved_tensors)
    return dq, dk, None, None


forward_op.register_autograd(backward, setup_context=save)


def rotary(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated q [T, H, D] and k [T, G, D] by contract (README.md); positions [T], cache [P, R] = cos | sin."""
    return forward_op(q, k, positions, cache)  # type: ignore[no-any-return]
