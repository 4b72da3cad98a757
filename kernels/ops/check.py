"""Refusals of calls outside a contract. A refused call gives an error, never another result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def require(condition: bool, operator: str, message: str) -> None:
    """Raise ValueError `samebits OPERATOR: MESSAGE` unless `condition`."""
    if not condition:
        raise ValueError(f"samebits {operator}: {message}")


def require_float(operator: str, name: str, value: torch.Tensor, dtypes: Iterable[torch.dtype] = FLOATS) -> None:
    """A floating tensor of a dtype of the contract, on CPU or CUDA."""
    allowed = tuple(dtypes)
    require(
        value.dtype in allowed,
        operator,
        f"{name} has dtype {value.dtype}; the contract covers {', '.join(map(str, allowed))}",
    )
    require(
        value.device.type in ("cpu", "cuda"), operator, f"{name} is on {value.device}; the contract covers cpu and cuda"
    )


def require_same(operator: str, **values: torch.Tensor | None) -> None:
    """All given tensors share dtype and device."""
    given = {name: value for name, value in values.items() if value is not None}
    first, *rest = given
    for name in rest:
        a, b = given[first], given[name]
        require(a.dtype == b.dtype, operator, f"{first} is {a.dtype} but {name} is {b.dtype}; cast one of them first")
        require(a.device == b.device, operator, f"{first} is on {a.device} but {name} is on {b.device}")


def require_dense(operator: str, name: str, value: torch.Tensor) -> None:
    """The last dim is contiguous."""
    require(
        value.shape[-1] <= 1 or value.stride(-1) == 1,
        operator,
        f"{name} has strides {value.stride()}: the last dim must be contiguous; call .contiguous() first",
    )
