"""Raw bits: equality and the first difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(slots=True, frozen=True)
class Unequal:
    """The first differing element of one output."""

    output: int
    index: tuple[int, ...]
    got: str
    expected: str
    differing: int
    total: int


def outputs_of(value: Any) -> tuple[torch.Tensor, ...]:
    """The outputs of a call as a tuple of tensors.

    Raises:
        TypeError: it is neither a tensor nor a sequence of tensors.
    """
    found = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not found or not all(isinstance(v, torch.Tensor) for v in found):
        raise TypeError(f"a tensor or a tuple of tensors is needed, not {type(value).__name__}")
    return found


def bits(x: torch.Tensor) -> torch.Tensor:
    """The same storage bits as integers: -0.0 differs from 0.0, NaN payloads count."""
    return x.contiguous().view(INTEGERS[x.dtype.itemsize])


def element(x: torch.Tensor, index: tuple[int, ...]) -> str:
    """Bits and value of one element."""
    width = x.dtype.itemsize
    value = x[index].reshape(1)
    raw = int(bits(value).item()) & ((1 << 8 * width) - 1)
    return f"0x{raw:0{2 * width}x} ({value.item():.9g})"


def first_difference(got: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> Unequal | None:
    """None: all bits equal. Shapes and dtypes must agree already."""
    for output, (a, b) in enumerate(zip(got, expected, strict=True)):
        unlike = bits(a) != bits(b)
        count = int(unlike.sum())
        if count:
            index = tuple(int(i) for i in unlike.nonzero()[0])
            return Unequal(output, index, element(a, index), element(b, index), count, a.numel())
    return None


def form_difference(got: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> str | None:
    """Why the outputs cannot be compared: number, shape, dtype or device. None: they can."""
    if len(got) != len(expected):
        return f"{len(got)} outputs, the operator has {len(expected)}"
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
            own, due = (f"{tuple(x.shape)} {x.dtype} on {x.device}" for x in (a, b))
            return f"output {i} is {own}, the operator gives {due}"
    return None
