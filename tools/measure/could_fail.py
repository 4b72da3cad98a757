"""Step 1 of docs/how-a-difference-is-found.md: could this check fail?

A one-ulp change to one tap must be reported, and capture must move no bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from samebits.tools.measure import gap
from samebits.tools.schema.artifacts.capture import CaptureManifest
from samebits.tools.schema.sites import CapturePlan, Flip
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch

    from samebits.tools.job.sides import Role, Sides
    from samebits.tools.schema.artifacts.capture import Tap
    from samebits.tools.schema.sites import Edit
    from samebits.tools.sides.protocol import RolloutData, Scores

    Ask = Callable[[CapturePlan | None, tuple[Edit, ...]], tuple[Scores, Path]]
    """Scores the rollout on one side with a capture and edits; with a plan the folder holds `capture`."""


@dataclass(slots=True, frozen=True)
class Evidence:
    """What step 1 found on one side."""

    sound: bool
    text: str
    unsteady: tuple[Role, ...] = ()
    """Sides that gave other logprobs when they were asked again in the same way."""


def check(
    ask: Ask, role: Role, data: RolloutData, plain: Scores, captured: tuple[Scores, Path] | None = None
) -> Evidence:
    """Three passes: plain (given), captured, captured with one element moved by one ulp.

    The element is in the first module of the model that has token rows (the embedding in most), at the last prompt
    token of the first sequence, so that everything after it can feel it. The taps are digests only.

    Args:
        captured: a captured run that is there already, with row digests of every module over all sequences.
    """
    used = next((i for i, sequence in enumerate(data.sequences) if sequence.sampled), None)
    if used is None:
        return Evidence(False, "nothing was sampled, so nothing could fail")
    plan = CapturePlan(level="module", store="digest", sequences=None if captured else (used,))
    seen, folder = captured or ask(plan, ())
    both_N = data.valid_N & plain.scored_N & seen.scored_N
    moved = int((gap.differs(plain.logprob_N, seen.logprob_N) & both_N).sum())
    if moved:
        return _moved(role, moved, plain, ask(None, ())[0], both_N)
    before = artifact.read(folder / "capture", CaptureManifest)
    tap = first_output(before.taps)
    if tap is None:
        return Evidence(
            False, f"{role}: no module output with token rows could be tapped, so a change could not be seen"
        )
    flip = Flip(site=tap.site, sequence=used, position=len(data.sequences[used].prompt) - 1)
    flipped, folder = ask(plan, (flip,))
    after = artifact.read(folder / "capture", CaptureManifest)
    digests = {str(t.site): t.digest for t in after.taps}
    noticed = [str(t.site) for t in before.taps if digests.get(str(t.site)) != t.digest]
    changed = int((gap.differs(plain.logprob_N, flipped.logprob_N) & both_N).sum())
    compared = int(both_N.sum())
    agreed = (
        f"captured and plain runs agree on all {compared} logprobs"
        if compared
        else "captured and plain runs have no valid logprob to compare"
    )
    text = (
        f"{role}: {agreed}; one ulp at {tap.site} "
        f"(sequence {flip.sequence}, "
        f"position {flip.position}) changes the digests of {len(noticed)} of {len(before.taps)} taps and {changed} "
        f"logprobs"
    )
    if not noticed and not changed:
        return Evidence(False, text + ": a real change would go unseen")
    return Evidence(True, text)


def _moved(role: Role, moved: int, plain: Scores, again: Scores, both_N: torch.Tensor) -> Evidence:
    """A captured run gave other logprobs: is it the capture, or does the side do so by itself?"""
    changes = int((gap.differs(plain.logprob_N, again.logprob_N) & both_N).sum())
    if changes:
        text = f"{role}: not equal to itself, the same call twice changes {changes} of {int(both_N.sum())} logprobs"
        return Evidence(False, text, (role,))
    return Evidence(
        False,
        f"{role}: capture itself changes {moved} of {int(both_N.sum())} logprobs, so no capture of this side can be "
        f"trusted",
    )


def on(sides: Sides, role: Role, rollout: Path) -> Ask:
    """Asks a side of a measurement."""

    def ask(plan: CapturePlan | None, edits: tuple[Edit, ...]) -> tuple[Scores, Path]:
        return sides.score(role, rollout, capture=plan, edits=edits)

    return ask


def check_rollout(sides: Sides, rollout: Path, data: RolloutData, plain: Scores) -> Evidence:
    """The same on the rollout side. A compiled engine runs no module hooks: then this is said, and nothing is
    claimed.
    """
    opened = sides.session("rollout").opened
    compiled = str(opened.facts.get("compiled", "")) if opened is not None else ""
    if compiled not in ("", "NONE", "False"):
        return Evidence(True, f"rollout: not tried, since module hooks do not run in a compiled engine ({compiled})")
    return check(on(sides, "rollout", rollout), "rollout", data, plain)


def both(trainer: Evidence, rollout: Evidence) -> Evidence:
    """Evidence of both sides; sound when each is."""
    failing = [evidence.text for evidence in (trainer, rollout) if not evidence.sound]
    unsteady = rollout.unsteady + trainer.unsteady
    return Evidence(not failing, "; ".join(failing or [trainer.text, rollout.text]), unsteady)


def first_output(taps: tuple[Tap, ...]) -> Tap | None:
    """The first output with token rows and a floating dtype."""
    outputs = [
        t for t in taps if t.site.port.startswith("out") and t.rowset is not None and t.rows > 0 and "float" in t.dtype
    ]
    return min(outputs, key=lambda t: t.order, default=None)
