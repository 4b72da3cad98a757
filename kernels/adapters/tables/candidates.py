"""Candidate folders under a trainer: each plays the roles of its operator, the table "samebits" plays the rest.

A candidate that passed its gate has the bits of the contract, so a trainer with it stays exact against an engine with
samebits' own operators. Gradients are those of the library's operator.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.tables import samebits_ops
from samebits.kernels.adapters.tables.operators import Facts, Operator, RoleName
from samebits.kernels.candidate import Candidate, Loaded, describe, load, unclaimed
from samebits.kernels.registry import operator

PLAYS: dict[str, tuple[RoleName, ...]] = {
    "embedding": ("embedding",),
    "rms_norm": ("norm",),
    "rotary": ("rotary",),
    "attention_varlen": ("attention",),
    "linear": ("linear", "head"),
    "silu_mul": ("activation",),
}
"""Operator -> the roles a candidate for it plays in a trainer."""


class Through(torch.autograd.Function):
    """The candidate forward, the library's operator backward."""

    @staticmethod
    def forward(ctx: Any, run: Any, own: Any, names: tuple[str, ...], *values: Any) -> Any:
        ctx.own, ctx.names, ctx.values = own, names, values
        return run(**dict(zip(names, values, strict=True)))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        values = [value.detach() if isinstance(value, torch.Tensor) else value for value in ctx.values]
        asked = [place for place, needed in enumerate(ctx.needs_input_grad[3:]) if needed]
        for place in asked:
            values[place].requires_grad_()
        with torch.enable_grad():
            out = ctx.own(**dict(zip(ctx.names, values, strict=True)))
        outputs = out if isinstance(out, tuple) else (out,)
        found = torch.autograd.grad(outputs, [values[place] for place in asked], grads, allow_unused=True)
        given = dict(zip(asked, found, strict=True))
        return None, None, None, *(given.get(place) for place in range(len(values)))


def roles(folders: Sequence[str | Path]) -> dict[str, str | Operator]:
    """A table for `patch`: the candidates, and "samebits" for every role that none of them plays.

    Raises:
        PatchError: a folder that is no candidate, an operator that no role of a trainer calls, two for one operator.
    """
    made: dict[str, str | Operator] = {"*": "samebits"}
    for folder in folders:
        try:
            candidate = describe(Path(folder))
            loaded = load(candidate, Path(tempfile.mkdtemp(prefix="samebits-candidate-")))
        except ValueError as error:
            raise PatchError(f"candidate {folder}", str(error), "mend candidate.toml, and build it") from error
        for role in PLAYS.get(candidate.operator, ()):
            if role in made:
                raise PatchError(
                    f"candidate {folder}", f"a second one for {candidate.operator}", "name one per operator"
                )
            made[role] = _played(role, candidate, loaded)
        if candidate.operator not in PLAYS:
            raise PatchError(
                f"candidate {folder}",
                f"operator {candidate.operator!r} is called by no role of a trainer",
                f"candidates under a trainer are for {', '.join(PLAYS)}",
            )
    return made


def _played(role: RoleName, candidate: Candidate, loaded: Loaded) -> Operator:
    """The candidate in one role, as the table "samebits" would call its operator there."""
    own = operator(candidate.operator).op
    signature = inspect.signature(own)
    inner: list[Operator] = []

    def instead(*args: Any) -> Any:
        bound = signature.bind(*args)
        bound.apply_defaults()
        return Through.apply(loaded.run, own, tuple(bound.arguments), *bound.arguments.values())  # type: ignore[no-untyped-call]

    def check(facts: Facts) -> None:
        if why := unclaimed(candidate, str(facts.dtype).removeprefix("torch."), facts.device.type):
            raise PatchError(f"candidate {candidate.name}", *why)
        samebits_ops.check(facts)
        inner[:] = [samebits_ops.table(facts, {candidate.operator: instead})[role]]

    def run(*args: Any) -> Any:
        return inner[0].run(*args)

    name = f"candidate {candidate.name} {candidate.digest[:12]} for samebits::{candidate.operator}"
    return Operator(role, name, run, check)
