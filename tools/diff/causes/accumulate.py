"""Matrix products and sums in the order of known CPU kernels, and their exponentials, as plain PyTorch.

Legend: B batch (heads), M rows, K summed, N columns, S last axis.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

LOG2E = float.fromhex("0x1.715476p+0")
LN2 = float.fromhex("0x1.62e430p-1")
SMALLEST = -float.fromhex("0x1.5d58a0p+6")
"""ln of the smallest normal float32: below it these exponentials give 0."""
CUBIC = (0.00010703434948458272, 0.30354260500649682, -0.22433836478672356, -0.079204240219773236)
QUINTIC = (1.0, 0.999999701, 0.499991506, 0.166676521, 0.0418978221, 0.00828929059)
TILE = 32
"""K of one AMX tile product of 16-bit factors."""
LANES = 16


def fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """float32 a * b + c with one rounding: the product is exact in float64."""
    return (a.double() * b.double() + c.double()).float()


def horner(x: torch.Tensor, coefficients: tuple[float, ...]) -> torch.Tensor:
    """Polynomial by fused multiply-adds, lowest coefficient first."""
    result = torch.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = fma(x, result, torch.full_like(x, coefficient))
    return result


def cubic_exp(x: torch.Tensor) -> torch.Tensor:
    """PyTorch's fexp_u20 (ATen/cpu/vec): the exponent bits are written directly, a cubic corrects the fraction."""
    y = x * LOG2E
    fraction = y - y.floor()
    y = y - horner(fraction, CUBIC)
    bits = fma(torch.full_like(y, 2.0**23), y, torch.full_like(y, 127 * 2.0**23))
    return torch.where(x < SMALLEST, 0.0, bits.nan_to_num(nan=0.0).clamp(min=0).to(torch.int32).view(torch.float32))


def quintic_exp(x: torch.Tensor) -> torch.Tensor:
    """PyTorch's exp_u20 (ATen/cpu/vec) and vLLM's CPU exponential: degree five after reduction by ln 2."""
    kept = x.clamp(min=SMALLEST)
    whole = fma(kept, torch.full_like(kept, LOG2E), torch.full_like(kept, 0.5)).floor()
    rest = fma(-whole, torch.full_like(kept, LN2), kept)
    return torch.where(x < SMALLEST, 0.0, horner(rest, QUINTIC) * torch.exp2(whole - 1) * 2)


def exponential(x: torch.Tensor, how: str) -> torch.Tensor:
    """exp over the last axis; `cubic` leaves what does not fill a vector of 16 lanes to the plain exp."""
    if how == "exp2":
        return torch.exp2(x * math.log2(math.e))
    if how == "quintic":
        return quintic_exp(x)
    if how == "cubic":
        full = x.shape[-1] // LANES * LANES
        return torch.cat([cubic_exp(x[..., :full]), torch.exp(x[..., full:])], -1)
    return torch.exp(x)


def last_sum(x: torch.Tensor, how: str) -> torch.Tensor:
    """Sum over the last axis, [..., 1]; `lanes`: 16 running sums, then halves, then the tail one by one."""
    if how == "native":
        return x.sum(-1, keepdim=True)
    full = x.shape[-1] // LANES * LANES
    total = x.new_zeros(*x.shape[:-1], 1)
    if full:
        blocks = x[..., :full].reshape(*x.shape[:-1], -1, LANES)
        lanes = blocks[..., 0, :]
        for i in range(1, blocks.shape[-2]):
            lanes = lanes + blocks[..., i, :]
        while lanes.shape[-1] > 1:
            half = lanes.shape[-1] // 2
            lanes = lanes[..., :half] + lanes[..., half:]
        total = lanes
    for i in range(full, x.shape[-1]):
        total = total + x[..., i : i + 1]
    return total


def product(a_BMK: torch.Tensor, b_BKN: torch.Tensor, how: str) -> torch.Tensor:
    """a b in a stated order, float32 [B, M, N].

    native: PyTorch's float32 product. ascending: one chain of fused multiply-adds. pairs: as VDPBF16PS, odd before even
    of each pair. tiles: as AMX TDPBF16PS, even and odd chains of each 32, added, then added to the accumulator.
    """
    if how == "native":
        return a_BMK @ b_BKN
    size = a_BMK.shape[-1]
    total = torch.zeros(*a_BMK.shape[:2], b_BKN.shape[-1], device=a_BMK.device)

    def term(i: int) -> torch.Tensor:
        return a_BMK[:, :, i, None] * b_BKN[:, None, i, :]

    if how == "ascending":
        for i in range(size):
            total = fma(a_BMK[:, :, i, None].expand_as(total), b_BKN[:, None, i, :].expand_as(total), total)
    elif how == "pairs":
        for i in range(0, size, 2):
            total = total + term(i + 1) if i + 1 < size else total
            total = total + term(i)
    else:
        for first in range(0, size, TILE):
            total = total + tile(term, first, min(first + TILE, size))
    return total


def tile(term: Callable[[int], torch.Tensor], first: int, end: int) -> torch.Tensor:
    """One tile: the even chain plus the odd chain."""
    even = term(first)
    for i in range(first + 2, end, 2):
        even = even + term(i)
    if first + 1 == end:
        return even
    odd = term(first + 1)
    for i in range(first + 3, end, 2):
        odd = odd + term(i)
    return even + odd
