"""Gives each suspect its cause, and the evidence that lets it be cut out later."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from samebits.tools.align.pairs import sliced
from samebits.tools.diff.causes.fingerprint import fingerprint
from samebits.tools.diff.causes.name import name_cause
from samebits.tools.diff.causes.observation import Named, Observation
from samebits.tools.diff.model_folder import Missing, Model
from samebits.tools.diff.observe import Case, observe
from samebits.tools.repro import evidence
from samebits.tools.schema.artifacts.divergence import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from samebits.tools.align.taps import Taps
    from samebits.tools.diff.causes.search import Fits
    from samebits.tools.diff.find import Found, Suspect
    from samebits.tools.sides.protocol import RolloutData

VAIN = 2
"""Layers in which the arithmetics of an operator are looked for before the search is given up in the others."""
KEPT = 2
"""Layers of which an operator's inputs are kept: those of one more would take its weights' size again."""
ROWS = 4096
"""Token rows a cause is tried on; more prove no more and take longer."""


@dataclass(slots=True, frozen=True)
class Explained:
    """A cause, and what the Divergence artifact keeps so that the operator can be cut out later."""

    cause: Cause
    evidence: tuple[str, dict[str, torch.Tensor]] | None = None
    """Text and tensors of tools/repro/evidence.py; None: the inputs could not be put together."""


def causes(
    found: Found,
    rollout: Taps,
    model_folder: str,
    data: RolloutData,
    device: str,
    emit: Callable[[str, str, int, int], None],
) -> list[Explained]:
    """One cause per suspect; plain PyTorch runs on `device`, where the sides ran. What fits an operator is tried first
    on the same operator in the other layers."""
    model = Model(model_folder)
    known: dict[tuple[str, str], Fits] = {}
    vain: dict[tuple[str, str], list[str]] = defaultdict(list)
    kept: dict[tuple[str, str], int] = defaultdict(int)
    explained = []
    for number, suspect in enumerate(found.suspects):
        emit("classify", f"{suspect.kind} {suspect.pair.trainer}", number, len(found.suspects))
        pattern = pattern_of(suspect)
        searched = vain[pattern] if len(vain[pattern]) >= VAIN else []
        one, fits = cause_of(suspect, found, rollout, model, data, device, known.get(pattern), searched)
        if fits is not None and fits.rollout and fits.trainer:
            known.setdefault(pattern, fits)
        elif fits is not None:
            vain[pattern].append(str(suspect.pair.trainer))
        kept[pattern] += one.evidence is not None
        explained.append(one if kept[pattern] <= KEPT else replace(one, evidence=None))
    return explained


def unsearched(seen: Observation, searched: Sequence[str]) -> Named:
    """The answer where a search would only repeat one that was in vain."""
    why = f"not searched: no arithmetic fits the same operator at {' and '.join(searched)}"
    return Named(Cause(name="unknown", why=why, fingerprint=fingerprint(seen)))


def pattern_of(suspect: Suspect) -> tuple[str, str]:
    """Equal for the same operator in other layers."""
    return suspect.kind, re.sub(r"\d+", "N", str(suspect.pair.trainer))


def cause_of(
    suspect: Suspect,
    found: Found,
    rollout: Taps,
    model: Model,
    data: RolloutData,
    device: str,
    known: Fits | None = None,
    searched: Sequence[str] = (),
) -> tuple[Explained, Fits | None]:
    """Named, or unknown with the reason; and what fits."""
    site = str(suspect.pair.trainer)
    trainer = found.operators if found.operators and site in found.operators.numbers else found.forced
    both = sliced(suspect.pair, rollout, trainer)
    if both is None:
        return Explained(Cause(name="unknown", why="the outputs were not stored")), None
    pairs = tuple(found.pairs)
    case = Case(
        suspect, rollout, model, data, both.keys_R[:ROWS], both.rollout_RC[:ROWS], both.trainer_RC[:ROWS], pairs
    )
    try:
        seen = observe(case).to(device)
    except Missing as missing:
        bare = Observation("unknown", {}, case.ours, case.theirs, position=case.position_T)
        cause = name_cause(bare).cause
        if cause.name == "unknown":
            cause = cause.model_copy(update={"why": f"not tried: {missing.what}"})
        return Explained(cause), None
    named = unsearched(seen, searched) if searched else name_cause(seen, known)
    looked, all_there = seen.rollout.numel(), suspect.bits.elements
    part = f" Looked at {looked:,} of {all_there:,} elements." if looked < all_there else ""
    cause = named.cause.model_copy(update={"why": named.cause.why + part})
    return Explained(cause, evidence.pack(seen, named)), named.fits
