"""Gives each suspect its cause, and the evidence that lets it be cut out later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from samebits.tools.align.pairs import sliced
from samebits.tools.diff.causes.name import name_cause
from samebits.tools.diff.causes.observation import Observation
from samebits.tools.diff.model_folder import Missing, Model
from samebits.tools.diff.observe import Case, observe
from samebits.tools.repro import evidence
from samebits.tools.schema.artifacts.divergence import Cause

if TYPE_CHECKING:
    import torch

    from samebits.tools.align.taps import Taps
    from samebits.tools.diff.find import Found, Suspect
    from samebits.tools.sides.protocol import RolloutData

ROWS = 4096
"""Token rows a cause is tried on; more prove no more and take longer."""


@dataclass(slots=True, frozen=True)
class Explained:
    """A cause, and what the Divergence artifact keeps so that the operator can be cut out later."""

    cause: Cause
    evidence: tuple[str, dict[str, torch.Tensor]] | None = None
    """Text and tensors of tools/repro/evidence.py; None: the inputs could not be put together."""


def causes(found: Found, rollout: Taps, model_folder: str, data: RolloutData, device: str) -> list[Explained]:
    """One cause per suspect; plain PyTorch runs on `device`, where the sides ran."""
    model = Model(model_folder)
    return [cause_of(suspect, found, rollout, model, data, device) for suspect in found.suspects]


def cause_of(suspect: Suspect, found: Found, rollout: Taps, model: Model, data: RolloutData, device: str) -> Explained:
    """Named, or unknown with the reason."""
    site = str(suspect.pair.trainer)
    trainer = found.operators if found.operators and site in found.operators.numbers else found.forced
    both = sliced(suspect.pair, rollout, trainer)
    if both is None:
        return Explained(Cause(name="unknown", why="the outputs were not stored"))
    pairs = tuple(found.pairs)
    case = Case(
        suspect, rollout, model, data, both.keys_R[:ROWS], both.rollout_RC[:ROWS], both.trainer_RC[:ROWS], pairs
    )
    try:
        seen = observe(case).to(device)
    except Missing as missing:
        bare = Observation("unknown", {}, case.ours, case.theirs, position=case.position_T)
        cause = name_cause(bare).cause
        return Explained(
            cause.model_copy(update={"why": f"not tried: {missing.what}"}) if cause.name == "unknown" else cause
        )
    named = name_cause(seen)
    looked, all_there = seen.rollout.numel(), suspect.bits.elements
    part = f" Looked at {looked:,} of {all_there:,} elements." if looked < all_there else ""
    cause = named.cause.model_copy(update={"why": named.cause.why + part})
    return Explained(cause, evidence.pack(seen, named))
