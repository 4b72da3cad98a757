"""One operator that differs: what went in, what came out on each side."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from samebits.tools.diff.bits import equal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from samebits.tools.diff.causes.search import Fits
    from samebits.tools.schema.artifacts.divergence import Cause

Scalar = int | float | bool | str


@dataclass(slots=True, frozen=True)
class Observation:
    """Inputs are bit-equal on both sides; outputs are not.

    Roles and shapes per kind (T token rows; `dtype` is that of the activations):

    norm        x [T, H], residual [T, H] (optional), weight [H]; eps
    rotary      x [T, heads, D], cos [T, D/2], sin [T, D/2], or positions [T] and inv_freq [D/2] instead of the tables
    linear      x [T, K], weight [N, K], bias [N] (optional); which rows may have run together: sequence [T], pass [T]
                (both optional); merged [M, K] and columns [N] (optional): the weight is these rows of a larger one
    attention   q [T, Hq, D], k [S, Hk, D], v [S, Hk, Dv], position [T] (index of each query in the keys),
                pass [T], sink [Hq] (both optional); scale, window (0: none), softcap (0: none)
    activation  gate [T, F], up [T, F] (optional); name ("silu" or "gelu")
    router      logits [T, E]; top_k, renormalise, scale; the output is dense [T, E], zero where not selected
    experts     x [T, H], w13 [E, 2F, H] (gate first), w2 [E, H, F], weights [T, k], ids [T, k]; or, where a side
                hands out no weights, the router's logits [T, E] instead of them, with the router's scalars
    embedding   ids [T], weight [V, H]; scale
    logprob     logits [T, V], token [T], sequence [T], pass [T] (both optional); temperature, vocabulary; the output is
                float32 [T]
    residual    x [T, H], residual [T, H]; or updates [T, updates, H] added one after the other
    reduce      parts [P, T, H], summed over P
    """

    kind: str
    inputs: Mapping[str, torch.Tensor]
    rollout: torch.Tensor
    trainer: torch.Tensor
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    position: torch.Tensor | None = None
    """int [T], absolute position of each row, for the fingerprint."""

    def __getitem__(self, role: str) -> torch.Tensor:
        return self.inputs[role]

    def has(self, role: str) -> bool:
        """Whether this input was recorded."""
        return role in self.inputs

    def to(self, device: str) -> Observation:
        """The same on a device: kernels of another device have other bits."""
        inputs = {role: tensor.to(device) for role, tensor in self.inputs.items()}
        position = self.position.to(device) if self.position is not None else None
        return replace(
            self, inputs=inputs, rollout=self.rollout.to(device), trainer=self.trainer.to(device), position=position
        )

    def number(self, name: str, default: float) -> float:
        """A scalar as float."""
        return float(self.scalars.get(name, default))

    def rows(self, index: torch.Tensor, roles: tuple[str, ...]) -> Observation:
        """The same operator on some token rows: `roles` are the inputs that have one entry per row."""
        cut = {role: tensor[index] if role in roles else tensor for role, tensor in self.inputs.items()}
        return replace(self, inputs=cut, rollout=self.rollout[index], trainer=self.trainer[index])


@dataclass(slots=True, frozen=True)
class Option:
    """One way to do one step of an operator."""

    name: str
    words: str
    """What it does, as half a sentence."""
    cause: str = ""
    """Class of a difference between this option and the plain one, when it is not the setting's."""
    whole: bool = False
    """Its bits for a row depend on the other rows, so it cannot be tried on a few rows."""
    known: bool = False
    """Costly to run: tried only as part of the arithmetic of a known kernel (`Arithmetic.kernels`)."""


@dataclass(slots=True, frozen=True)
class Setting:
    """One step of an operator that can be done in several ways; the first one is the plain one."""

    name: str
    cause: str
    options: tuple[Option, ...]


@dataclass(slots=True, frozen=True)
class Arithmetic:
    """An operator kind as plain PyTorch with settings."""

    kind: str
    row_roles: tuple[str, ...]
    """Inputs with one entry per token row."""
    settings: Callable[[Observation], tuple[Setting, ...]]
    run: Callable[[Observation, Mapping[str, str]], torch.Tensor]
    kernels: Callable[[Observation], tuple[dict[str, str], ...]] = lambda _: ()
    """Picks of known kernels that are far from the plain arithmetic: tried before the search."""
    depth: int = 3
    """Most steps in which one side may differ from the plain arithmetic."""


@dataclass(slots=True, frozen=True)
class Named:
    """A cause and, when plain PyTorch reproduces a side, with which options."""

    cause: Cause
    rollout: Mapping[str, str] | None = None
    trainer: Mapping[str, str] | None = None
    fits: Fits | None = None
    """Everything that fits; None: nothing was searched for."""


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """All elements have equal bytes, and the dtypes and shapes are equal."""
    return a.dtype == b.dtype and a.shape == b.shape and equal(a, b)
