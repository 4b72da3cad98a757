"""The bitwise core: digests (defined in digest.py), exact comparison, distance in ulps, the next value.

Equality is raw bytes: -0.0 is not 0.0, and NaN payloads count.

Legend: R rows, C columns.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch

from samebits.tools.diff.digest import digest_rows, digest_tap, digest_whole, raw_bytes, to_hex
from samebits.tools.schema.artifacts.divergence import Bits

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "compare",
    "digest_rows",
    "digest_tap",
    "digest_whole",
    "equal",
    "hex_rows",
    "next_ulp",
    "ordered",
    "rows_differing",
    "to_hex",
    "ulps",
]

_INTS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = {"cpu": 1 << 18, "cuda": 1 << 26}
"""Elements compared at a time: bounds the temporary memory, on CPU to what stays in cache."""
_MOST = (1 << 63) - 1


def hex_rows(rows_RC: torch.Tensor) -> tuple[str, ...]:
    """Digest of each row, 32 hex digits."""
    return tuple(to_hex(digest_rows(rows_RC)))


def bit_view(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers of the element's size."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.detach().view(_INTS[tensor.element_size()])


def ordered(tensor: torch.Tensor) -> torch.Tensor:
    """int64 that counts floating-point values in order of size: neighbours differ by 1.

    -0.0 is -1 and 0.0 is 0, NaNs lie beyond the infinities in order of their payload. Integers are themselves.
    """
    bits = bit_view(tensor).to(torch.int64)
    if not tensor.is_floating_point():
        return tensor.to(torch.int64)
    magnitude = (1 << (8 * tensor.element_size() - 1)) - 1
    return bits ^ ((bits >> 63) & magnitude)


def ulps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """int64 distance of each pair in units in the last place; 0 only for equal bits, 2^63 - 1 where it does not fit."""
    left, right = ordered(a), ordered(b)
    distance = left - right
    overflow = ((left ^ right) & (left ^ distance)) < 0
    lowest = distance == -_MOST - 1
    return distance.abs().masked_fill(overflow | lowest, _MOST)


def next_ulp(tensor: torch.Tensor) -> torch.Tensor:
    """Every element moved by one bit pattern: away from zero, but a finite value stays finite and a NaN (where
    there is a second one) a NaN."""
    if not tensor.is_floating_point():
        return ~tensor if tensor.dtype == torch.bool else tensor + 1
    bits = bit_view(tensor)
    up, down = (bits + 1).view(tensor.dtype), (bits - 1).view(tensor.dtype)
    last = bits & torch.iinfo(bits.dtype).max
    wide = tensor.double()  # float8 has no isfinite of its own
    leaves = (wide.isfinite() & ~up.double().isfinite()) | wide.isinf() | (last == torch.iinfo(bits.dtype).max)
    return torch.where(leaves, bit_view(down), bit_view(up)).view(tensor.dtype)


def _check(a: torch.Tensor, b: torch.Tensor) -> None:
    if a.dtype != b.dtype or a.shape != b.shape:
        raise ValueError(f"cannot compare {a.dtype} {tuple(a.shape)} with {b.dtype} {tuple(b.shape)} bit for bit")


def _same_words(a_RC: torch.Tensor, b_RC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both [R, words]: the bytes of each row in the widest integers that divide it, so that fewer are compared."""
    left, right = raw_bytes(a_RC), raw_bytes(b_RC)
    for dtype in (torch.int64, torch.int32, torch.int16):
        if not any(value % dtype.itemsize for value in (left.shape[1], left.data_ptr(), right.data_ptr())):
            return left.view(dtype), right.view(dtype)
    return left, right


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether all bits are equal, near memory speed. Dtype and shape must be.

    Raises:
        ValueError: unequal dtype or shape.
    """
    _check(a, b)
    left, right = raw_bytes(a.reshape(1, -1)), raw_bytes(b.reshape(1, -1))
    if left.device.type == right.device.type == "cpu":
        return _memcmp()(left.data_ptr(), right.data_ptr(), left.numel()) == 0
    return torch.equal(*_same_words(left, right))


@cache
def _memcmp() -> Callable[[int, int, int], int]:
    """The C library's: torch.equal compares element by element, at a third of its speed and less."""
    function = ctypes.CDLL(None).memcmp
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
    return function


def rows_differing(a_RC: torch.Tensor, b_RC: torch.Tensor) -> torch.Tensor:
    """bool [R]: rows with any unequal bit."""
    _check(a_RC, b_RC)
    left, right = _same_words(a_RC, b_RC)
    if left.device.type == right.device.type == "cpu":
        return torch.from_numpy((left.numpy() != right.numpy()).any(axis=1))  # twice as fast as torch's
    return (left != right).any(dim=1)


def compare(a_RC: torch.Tensor, b_RC: torch.Tensor) -> Bits:
    """Compare two sets of rows bit for bit. Equal rows are told near memory speed; the rest in detail.

    Args:
        a_RC, b_RC: [R, C] of one dtype on one device.

    Raises:
        ValueError: unequal dtype or shape, or not [R, C].
    """
    _check(a_RC, b_RC)
    if a_RC.dim() != 2:
        raise ValueError(f"rows must be [R, C], not {tuple(a_RC.shape)}")
    counts = _Counts()
    most = _CHUNK.get(a_RC.device.type, 1 << 18)
    step = max(1, most // max(1, a_RC.shape[1]))
    waiting: list[tuple[torch.Tensor, torch.Tensor]] = []  # a few rows of many pieces are counted together
    for a, b in zip(torch.split(a_RC, step), torch.split(b_RC, step), strict=True):
        if equal(a, b):
            continue
        chosen = rows_differing(a, b)
        waiting.append((a[chosen], b[chosen]))
        if sum(left.numel() for left, _ in waiting) >= most:
            counts.add(waiting)
    counts.add(waiting)
    return Bits(
        rows=len(a_RC),
        rows_differing=counts.rows,
        elements=a_RC.numel(),
        elements_differing=counts.elements,
        max_ulps=counts.ulps,
        max_abs=counts.largest,
        value_equal_only=counts.same_value,
    )


@dataclass(slots=True)
class _Counts:
    """Of the rows that differ."""

    rows: int = 0
    elements: int = 0
    ulps: int = 0
    largest: float = 0.0
    same_value: int = 0

    def add(self, waiting: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Count pieces, each with an element that differs in every row, and forget them."""
        if not waiting:
            return
        a, b = (torch.cat(side) if len(side) > 1 else side[0] for side in zip(*waiting, strict=True))
        waiting.clear()
        unequal = bit_view(a) != bit_view(b)
        if a.is_complex():
            a, b = torch.view_as_real(a), torch.view_as_real(b)
        x, y = a[unequal], b[unequal]
        self.rows += len(a)
        self.elements += len(x)
        self.ulps = max(self.ulps, int(ulps(x, y).max()))
        same = _same_value(x, y)
        self.same_value += int(same.sum())
        far = (x.double() - y.double()).abs().masked_fill(same, 0.0)
        self.largest = max(self.largest, float(far.nan_to_num(nan=float("inf"), posinf=float("inf")).max()))


def _same_value(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Equal as values: zeros of either sign, NaNs of any payload."""
    if not x.is_floating_point():
        return x == y
    wide_x, wide_y = x.double(), y.double()
    return (wide_x == wide_y) | (wide_x.isnan() & wide_y.isnan())
