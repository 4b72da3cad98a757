"""Small helpers on tensors: copies that keep strides, tensors inside nested arguments, equality of bits."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.diff.bits import equal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16`, not `torch.bfloat16`."""
    return str(dtype).removeprefix("torch.")


def extent(tensor: torch.Tensor) -> int:
    """Elements from the first to the last one in memory."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def copy_strided(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, overlaps included: kernels choose by layout, so a replay must see the same one."""
    plain = tensor.detach()
    count = extent(plain)
    if count == 0:
        return plain.clone()
    memory = plain.as_strided((count,), (1,)).clone()
    return memory.as_strided(plain.shape, plain.stride(), 0)


def private(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy in CPU memory that nobody else holds."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of every tensor in nested tuples, lists, dicts and dataclass-like outputs, in order.

    Names are `0`, `1`, ... counted over all tensors; entries of dicts keep their key.
    """
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (tuple, list)):
        for index, part in enumerate(value):
            yield from leaves(part, f"{name}.{index}" if name else str(index))


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same nesting with every tensor changed; what holds none is returned as it is."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        changed = {key: mapped(part, change) for key, part in value.items()}
        if all(changed[key] is value[key] for key in value):
            return value
        if type(value) is dict:
            return changed
        for key, part in changed.items():  # transformers' ModelOutput: an ordered dict with attributes
            value[key] = part
        return value
    if isinstance(value, (tuple, list)):
        parts = [mapped(part, change) for part in value]
        if all(map(is_, parts, value)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal dtype, shape and bytes."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.numel() == 0:
        return True
    return equal(a, b)
