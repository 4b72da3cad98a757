"""The form of a case: a reported difference as two small PyTorch arithmetics, and the verdict samebits must give."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.diff.causes.name import name_cause
from samebits.tools.diff.causes.observation import Observation

if TYPE_CHECKING:
    from collections.abc import Callable

    from samebits.tools.capture.alone import Shown
    from samebits.tools.schema.artifacts.divergence import Cause

EQUAL = "equal"
"""What a control judges when no bit differs, or no probe finds anything."""


@dataclass(frozen=True, slots=True)
class Case:
    """One reported difference."""

    name: str
    area: str
    source: str
    """Public threads that report it."""
    symptom: str
    verdict: str
    """The word samebits must give: a class of docs/causes.md, or the name of a closed form of `measure`."""
    judge: Callable[[], str]
    """Runs samebits' own tools on the fault."""
    without: str
    """The negative control in words: the fault taken out, or another fault put in."""
    control_verdict: str
    control: Callable[[], str]


def word(cause: Cause | Shown | None) -> str:
    """The verdict of a probe or of the cause library."""
    return EQUAL if cause is None or cause.name == "vacuous" else cause.name


def named(
    kind: str, inputs: dict[str, torch.Tensor], rollout: torch.Tensor, trainer: torch.Tensor, **scalars: Any
) -> str:
    """Verdict of the cause library on one operator."""
    return word(name_cause(Observation(kind, inputs, rollout, trainer, scalars)).cause)


def random(seed: int) -> Callable[..., torch.Tensor]:
    """Normal float32 tensors from one seed."""
    make = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=make)


def all_cases() -> list[Case]:
    """Every case of this folder, by file name."""
    files = sorted(path.stem for path in Path(__file__).parent.glob("cases_*.py"))
    return [case for file in files for case in importlib.import_module(file).CASES]
