"""normed_rotary as a torch.library operator: for engines, without a gradient."""

from __future__ import annotations

import torch

from samebits.kernels.ops.check import refuse, require_same
from samebits.kernels.ops.normed_rotary.contract import contract
from samebits.kernels.ops.normed_rotary.pages import Pages, write
from samebits.kernels.ops.normed_rotary.pages import check as check_pages
from samebits.kernels.ops.ran import ran
from samebits.kernels.ops.register import dispatched
from samebits.kernels.ops.rotary.op import check as check_rotary

NAME = "normed_rotary"
SIZES = (64, 128)
"""Head sizes on CUDA."""


@dispatched("normed_rotary")
def forward_op(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    cache: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(q', k') of README.md."""
    return body(q, k, q_weight, k_weight, eps, positions, cache)


def body(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    cache: torch.Tensor,
    pages: Pages | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(q', k') of README.md. pages: where k' and v are written in the same launch."""
    check_rotary(q, k, positions, cache)
    require_same(NAME, q=q, q_weight=q_weight, k_weight=k_weight)
    size = q.shape[2]
    if cache.shape[1] != size:
        refuse(NAME, f"cache {tuple(cache.shape)} rotates other than whole heads of {size}")
    for name, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
        fits = tuple(weight.shape) == (size,) and weight.is_contiguous()
        if not fits:
            refuse(NAME, f"{name} {tuple(weight.shape)} must be a contiguous [{size}]")
    if pages is not None:
        check_pages(k, pages)
    ran(NAME if pages is None else f"{NAME} into pages")
    if q.is_cuda:
        if not (size in SIZES and q.element_size() == 2):
            refuse(NAME, f"{q.dtype}, head size {size} on CUDA: 16 bits, {SIZES}")
        from samebits.kernels.ops.normed_rotary.triton import run

        return run(q, k, q_weight, k_weight, eps, positions, cache, pages)
    found = contract(q, k, q_weight, k_weight, eps, positions, cache)
    if pages is not None:
        write(found[1], pages)
    return found


@forward_op.register_fake
def _(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    cache: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device), torch.empty(k.shape, dtype=k.dtype, device=k.device)


def normed_rotary(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    cache: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normed and rotated q [T, H, D] and k [T, G, D] by contract (README.md); weights [D], cache [P, D] = cos | sin."""
    return forward_op(q, k, q_weight, k_weight, eps, positions, cache)  # type: ignore[no-any-return]
