"""samebits' operators in PyTorch's dispatcher.

What torch.library.custom_op does, less what it does at every call: a search for outputs that are inputs (ours are
always new) and several layers of wrappers. An engine calls operators hundreds of times in a step with prompts, and
there the host is what it waits for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Fake = TypeVar("Fake", bound=Callable[..., Any])
LIBRARY = torch.library.Library("samebits", "FRAGMENT")
BODIES: dict[str, Callable[..., Any]] = {}
"""Qualified name -> the function behind the operator."""


class Dispatched:
    """`samebits::NAME`: called like its function; a fake and a gradient are registered as for custom_op."""

    def __init__(self, name: str, body: Callable[..., Any]) -> None:
        self.name = f"samebits::{name}"
        self.overload = getattr(torch.ops.samebits, name).default
        functools.update_wrapper(self, body)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.overload(*args, **kwargs)

    def register_fake(self, fake: Fake) -> Fake:
        """The form of the outputs, for torch.compile."""
        torch.library.register_fake(self.name, fake, lib=LIBRARY)
        return fake

    def register_autograd(self, backward: Callable[..., Any], *, setup_context: Callable[..., None]) -> None:
        """The gradient."""
        torch.library.register_autograd(self.name, backward, setup_context=setup_context, lib=LIBRARY)


def dispatched(name: str) -> Callable[[Callable[..., Any]], Dispatched]:
    """Decorator: an annotated function as the operator `samebits::NAME`, which changes no argument and returns only new
    tensors.
    """

    def make(body: Callable[..., Any]) -> Dispatched:
        @functools.wraps(body)
        def plain(*args: Any, **kwargs: Any) -> Any:
            # An engine's weights are a subclass of Parameter, whose every attribute would be asked for in Python.
            with torch._C.DisableTorchFunctionSubclass():
                return body(*args, **kwargs)

        schema = torch.library.infer_schema(body, mutates_args=())
        LIBRARY.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
        LIBRARY.impl(name, plain, "CompositeExplicitAutograd")
        BODIES[f"samebits::{name}"] = body
        return Dispatched(name, body)

    return make
