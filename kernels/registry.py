"""The operators of samebits: one explicit table, used by the gate for candidates and by the adapters."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

OPERATORS = {
    "attention": "samebits.kernels.ops.attention",
    "attention_varlen": "samebits.kernels.ops.attention_varlen",
    "embedding": "samebits.kernels.ops.embedding",
    "linear": "samebits.kernels.ops.linear",
    "logprob": "samebits.kernels.ops.logprob",
    "normed_rotary": "samebits.kernels.ops.normed_rotary",
    "rms_norm": "samebits.kernels.ops.rms_norm",
    "rotary": "samebits.kernels.ops.rotary",
    "silu_mul": "samebits.kernels.ops.silu_mul",
}
"""Operator name -> folder, whose form is kernels/ops/README.md."""


@dataclass(frozen=True)
class Operator:
    """One operator folder; its modules are imported when first asked for."""

    name: str
    package: str

    def module(self, name: str) -> ModuleType:
        """A module of the folder."""
        return importlib.import_module(f"{self.package}.{name}")

    @cached_property
    def inputs(self) -> ModuleType:
        """Shapes, dtypes, draws and cases."""
        return self.module("inputs")

    @property
    def reference(self) -> Callable[..., Any]:
        """The meaning, in float64."""
        return self.module("reference").reference  # type: ignore[no-any-return]

    @property
    def replaced(self) -> Callable[..., Any]:
        """What it replaces: the bar for error and speed."""
        return self.module("replaced").replaced  # type: ignore[no-any-return]

    @property
    def contract(self) -> Callable[..., Any]:
        """The bits."""
        return self.module("contract").contract  # type: ignore[no-any-return]

    @property
    def op(self) -> Callable[..., Any]:
        """The library's operator, differentiable."""
        return getattr(self.module("op"), self.name)  # type: ignore[no-any-return]


def operator(name: str) -> Operator:
    """The operator of that name.

    Raises:
        ValueError: unknown name; the text lists the known ones.
    """
    if name not in OPERATORS:
        raise ValueError(f"operator {name!r} is unknown; known are {', '.join(sorted(OPERATORS))}")
    return Operator(name, OPERATORS[name])
