"""Arguments of operator calls to JSON and back. A constant that JSON cannot hold exactly gets a one-key object."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}


def encode(argument: object, value: Callable[[torch.Tensor], Any], scalar: Callable[[int], Any]) -> Any:
    """One argument as JSON.

    Args:
        argument: what the dispatcher handed to the operator.
        value: how a tensor is named.
        scalar: how an int is named (a handle that an earlier call returned), or the int itself.

    Raises:
        TypeError: an argument of a kind that a trace cannot hold (a generator, a Python object).
    """
    if isinstance(argument, torch.Tensor):
        return value(argument)
    if argument is None or isinstance(argument, bool | str):
        return argument
    if isinstance(argument, int):
        return scalar(argument)
    if isinstance(argument, float):
        return argument if math.isfinite(argument) else {"float": repr(argument)}
    if isinstance(argument, list | tuple):
        return [encode(item, value, scalar) for item in argument]
    if isinstance(argument, torch.device):
        return {"device": argument.type}
    for kind, name in KINDS.items():
        if isinstance(argument, kind):
            return {name: str(argument).removeprefix("torch.")}
    raise TypeError(f"a trace cannot hold an argument of type {type(argument).__name__}")


def decode(argument: Any, value: Callable[[int], Any], scalar: Callable[[int], Any]) -> Any:
    """The inverse of `encode`."""
    if isinstance(argument, list | tuple):
        return [decode(item, value, scalar) for item in argument]
    if not isinstance(argument, dict):
        return argument
    ((name, content),) = argument.items()
    if name == "value":
        return value(content)
    if name == "scalar":
        return scalar(content)
    if name == "float":
        return float(content)
    return torch.device(content) if name == "device" else getattr(torch, content)


def operator(name: str) -> Any:
    """The overload of `namespace.name.overload`.

    Raises:
        LookupError: this process has no such operator.
    """
    namespace, packet, overload = name.split(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except AttributeError as error:
        raise LookupError(f"no operator {name} in this process") from error
