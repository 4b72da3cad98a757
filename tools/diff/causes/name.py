"""Names the cause of one operator that differs, or says unknown.

A class is named only when plain PyTorch gives every bit of BOTH sides and the two arithmetics differ in stated steps of
one class, with more evidence than chance could give, or (see probe.py) when a trigger was switched and the difference
followed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.tools.diff.causes.attention import ATTENTION
from samebits.tools.diff.causes.fingerprint import fingerprint, marks
from samebits.tools.diff.causes.linear import LINEAR
from samebits.tools.diff.causes.logprob import LOGPROB
from samebits.tools.diff.causes.moe import EXPERTS, ROUTER
from samebits.tools.diff.causes.norm import NORM
from samebits.tools.diff.causes.observation import Named
from samebits.tools.diff.causes.pointwise import ACTIVATION, EMBEDDING, REDUCE, RESIDUAL
from samebits.tools.diff.causes.rotary import ROTARY
from samebits.tools.diff.causes.search import effects, enough, explain, option_of, search
from samebits.tools.diff.causes.structure import structural
from samebits.tools.schema.artifacts.divergence import Cause

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from samebits.tools.diff.causes.observation import Arithmetic, Observation, Setting
    from samebits.tools.diff.causes.search import Explanation, Fits

KINDS: dict[str, Arithmetic] = {
    one.kind: one
    for one in (NORM, ROTARY, LINEAR, ATTENTION, ACTIVATION, ROUTER, EXPERTS, EMBEDDING, LOGPROB, RESIDUAL, REDUCE)
}


def name_cause(seen: Observation, known: Fits | None = None) -> Named:
    """The cause of one difference, with the arithmetics that prove it.

    Args:
        known: see `search`.

    Raises:
        KeyError: an input that this kind needs was not recorded (see Observation).
    """
    found = structural(seen)
    if found is not None:
        return Named(found)
    words = fingerprint(seen)
    if seen.kind not in KINDS:
        return Named(Cause(name="unknown", why=f"no arithmetic is known for kind {seen.kind!r}", fingerprint=words))
    arithmetic = KINDS[seen.kind]
    settings = arithmetic.settings(seen)
    fits = search(seen, arithmetic, known)
    best = explain(settings, fits)
    if best is None:
        return one_sided(seen, settings, fits, words)
    said = {
        side: sentence(settings, pick, best.steps)
        for side, pick in (("rollout", best.rollout), ("trainer", best.trainer))
    }
    why = f"rollout: {said['rollout']}; trainer: {said['trainer']}. {proof(seen, best)}"
    name, shares = chief(seen, arithmetic, best)
    why += shares
    if best.rivals:
        rivals = ", ".join(sorted({name, *best.rivals}))
        reason = f"several explanations fit every bit ({rivals}), the simplest: {why}"
        return Named(Cause(name="unknown", why=reason, fingerprint=words), fits=fits)
    if not enough(seen, fits):
        count = marks(seen.rollout, seen.trainer).differing
        reason = f"only {count} differing elements against {fits.tried} arithmetics tried: a fit by chance is possible"
        unsure = Cause(name="unknown", why=f"{reason}. Capture more rows. It fits: {why}", fingerprint=words)
        return Named(unsure, fits=fits)
    cause = Cause.model_validate({"name": name, "why": why, "fingerprint": words})
    return Named(cause, best.rollout, best.trainer, fits)


def chief(seen: Observation, arithmetic: Arithmetic, best: Explanation) -> tuple[str, str]:
    """The class that names the difference, and, with steps of several classes, how much each step moves by itself."""
    if len(set(best.steps.values())) == 1:
        return next(iter(best.steps.values())), ""
    moved = effects(seen, arithmetic, best)
    largest = max(moved, key=lambda step: moved[step])
    shares = ", ".join(f"{step} ({best.steps[step]}) {count:,}" for step, count in moved.items())
    return best.steps[largest], f". Elements that each step moves by itself: {shares}"


def proof(seen: Observation, best: Explanation) -> str:
    """What was shown."""
    count = seen.rollout.numel()
    steps = "this step" if len(best.steps) == 1 else f"these {len(best.steps)} steps"
    return f"Plain PyTorch with {steps} done either way gives all {count:,} elements of both sides to the bit"


def sentence(settings: tuple[Setting, ...], pick: Mapping[str, str], steps: Iterable[str]) -> str:
    """What a side does in these steps."""
    return ", ".join(option_of(settings, step, pick[step]).words for step in steps)


def one_sided(seen: Observation, settings: tuple[Setting, ...], fits: Fits, words: str) -> Named:
    """No arithmetic for at least one side: unknown, and what is known."""
    known = {"rollout": fits.rollout, "trainer": fits.trainer}
    parts = []
    for side, found in known.items():
        if found:
            changed = tuple(s.name for s in settings if found[0][s.name] != s.options[0].name) or (settings[0].name,)
            parts.append(f"plain PyTorch gives the {side}'s bits with: {sentence(settings, found[0], changed)}")
        else:
            parts.append(f"none of the arithmetics gives the {side}'s bits")
    end = "" if fits.exhausted else " before the budget ended"
    why = f"{'; '.join(parts)} ({fits.tried} tried{end})"
    cause = Cause(name="unknown", why=why, fingerprint=words)
    return Named(cause, fits.rollout[0] if fits.rollout else None, fits.trainer[0] if fits.trainer else None)
