"""Refusals of calls outside a contract. A refused call gives an error, never another result."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import torch

if TYPE_CHECKING:
    from collections.abc import Collection

FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def refuse(operator: str, message: str) -> NoReturn:
    """Raise ValueError `samebits OPERATOR: MESSAGE`.

    Checks run at every call of an operator, in an engine hundreds of times per step: what is hot tests first and
    writes its message only here.
    """
    raise ValueError(f"samebits {operator}: {message}")


def require(condition: bool, operator: str, message: str) -> None:
    """Raise ValueError `samebits OPERATOR: MESSAGE` unless `condition`."""
    if not condition:
        refuse(operator, message)


def require_float(operator: str, name: str, value: torch.Tensor, dtypes: Collection[torch.dtype] = FLOATS) -> None:
    """A floating tensor of a dtype of the contract, on CPU or CUDA."""
    if value.dtype not in dtypes:
        covered = ", ".join(map(str, dtypes))
        refuse(operator, f"{name} has dtype {value.dtype}; the contract covers {covered}")
    if not (value.is_cuda or value.device.type == "cpu"):
        refuse(operator, f"{name} is on {value.device}; the contract covers cpu and cuda")


def require_same(operator: str, **values: torch.Tensor | None) -> None:
    """All given tensors share dtype and device."""
    first: tuple[str, torch.dtype, torch.device] | None = None
    for name, value in values.items():
        if value is None:
            continue
        dtype, device = value.dtype, value.device
        if first is None:
            first = name, dtype, device
        elif dtype != first[1]:
            refuse(operator, f"{first[0]} is {first[1]} but {name} is {dtype}; cast one of them first")
        elif device != first[2]:
            refuse(operator, f"{first[0]} is on {first[2]} but {name} is on {device}")


def require_dense(operator: str, name: str, value: torch.Tensor) -> None:
    """The last dim is contiguous."""
    if value.shape[-1] > 1 and value.stride(-1) != 1:
        refuse(
            operator,
            f"{name} has strides {value.stride()}: the last dim must be contiguous; call .contiguous() first",
        )
