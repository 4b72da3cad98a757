"""Which code stands for a side in a repro: the operator, or the plain arithmetic, that gives the captured bits."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.diff.causes.name import KINDS
from samebits.tools.diff.causes.observation import Observation, same_bits
from samebits.tools.repro import plain
from samebits.tools.repro.operators import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from samebits.tools.schema.artifacts.evidence import Evidence

    Run = Callable[[Observation], torch.Tensor]


@dataclass(slots=True, frozen=True)
class Side:
    """Code of one side."""

    name: str
    """What it is, in words."""
    run: Run
    support: tuple[str, ...]
    """Source of the functions it needs."""
    body: str
    """Last line of the side's function in repro.py, over `inputs` and `scalars`."""
    vllm: bool
    """Whether it needs vllm."""


def operator_side(function: Any, extra: Mapping[str, Any]) -> Side:
    """An operator of operators.py."""

    def run(seen: Observation) -> torch.Tensor:
        with torch.no_grad():
            out: torch.Tensor = function(seen.inputs, {**seen.scalars, **extra})
        return out

    text = inspect.getsource(function)
    more = f"{{**scalars, **{dict(extra)!r}}}" if extra else "scalars"
    words = inspect.getdoc(function) or function.__name__
    set_up = ", ".join(f"{key}={value}" for key, value in extra.items())
    name = f"{words.splitlines()[0].rstrip('.')}" + (f" ({set_up})" if set_up else "")
    return Side(name, run, (text,), f"return {function.__name__}(inputs, {more})", "vllm." in text)


def plain_side(kind: str, pick: Mapping[str, str], dtype: torch.dtype) -> Side:
    """A plain arithmetic."""
    short = str(dtype).removeprefix("torch.")

    def run(seen: Observation) -> torch.Tensor:
        with torch.no_grad():
            return KINDS[kind].run(seen, pick)

    settings = ", ".join(f"{key} {value}" for key, value in pick.items())
    return Side(f"plain PyTorch: {settings}", run, (plain.source(kind)[0],), plain.call(kind, pick, short), False)


@dataclass(slots=True, frozen=True)
class Tried:
    """An operator that was tried and does not give the captured bits."""

    name: str
    outcome: str


def find(seen: Observation, evidence: Evidence, role: str) -> tuple[Side | None, list[Tried]]:
    """The first code that gives this side's captured output to the bit, operators before plain arithmetics."""
    wanted = seen.rollout if role == "rollout" else seen.trainer
    tried: list[Tried] = []
    for function, extra in OPERATORS.get(seen.kind, ()):
        side = operator_side(function, extra)
        try:
            out = side.run(seen)
        except (
            ImportError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
            NotImplementedError,
        ) as error:
            tried.append(
                Tried(side.name, f"does not run here: {type(error).__name__}: {str(error).splitlines()[0][:120]}")
            )
            continue
        if same_bits(out, wanted):
            return side, tried
        tried.append(Tried(side.name, "runs, with other bits"))
    pick = evidence.rollout if role == "rollout" else evidence.trainer
    if pick is not None:
        side = plain_side(seen.kind, pick, wanted.dtype)
        if same_bits(side.run(seen), wanted):
            return side, tried
        tried.append(Tried(side.name, "runs, with other bits"))
    return None, tried


def both(seen: Observation, rollout: Side, trainer: Side) -> Observation:
    """The same inputs with both outputs computed anew."""
    return replace(seen, rollout=rollout.run(seen), trainer=trainer.run(seen))
