"""Steps 5 to 7 of the demo: exact with vLLM's operators, exact after an update, one planted ulp found.

Legend: N sampled tokens.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from samebits.tools.diff.asking import Asker
from samebits.tools.diff.rows import by_digest
from samebits.tools.job.rollouts import obtain
from samebits.tools.measure.gap import stats
from samebits.tools.schema.artifacts.divergence import Pair
from samebits.tools.schema.passes import Push, Step
from samebits.tools.schema.sites import CapturePlan, Flip
from samebits.tools.sides import rollout_store

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from samebits.tools.job.job import Job
    from samebits.tools.schema.artifacts.gap import GapStats
    from samebits.tools.schema.experiment import Experiment
    from samebits.tools.sides.session import Session

RATE = 1e-3


@dataclass(slots=True)
class Planted:
    """What step 7 saw."""

    found: bool
    text: str
    stats: GapStats


@dataclass(slots=True)
class Proven:
    """What steps 5 to 7 saw."""

    exact: GapStats
    updated: GapStats
    after: torch.Tensor
    """|rollout - trainer| [N], float64."""
    replaced: tuple[str, ...]
    pushed: str
    update_seconds: float
    """Update, push, second rollout and recompute."""
    planted: Planted
    planted_seconds: float
    lines: dict[str, tuple[str, ...]]


def exact_and_update(job: Job, experiment: Experiment) -> Proven:
    """Roll out, recompute with the patched trainer; plant the ulp; update, push, roll out again, recompute again.

    The ulp is planted while the trainer has the weights of that rollout: no second trainer is opened for it.
    """
    with ExitStack() as stack:
        job.prepare("trainer", experiment)
        engine = stack.enter_context(job.open_side("rollout", experiment))
        trainer = stack.enter_context(job.open_side("trainer", experiment))
        rollout = obtain(None, experiment, lambda: engine, job).folder
        exact, after_N = _recompute(job, rollout, engine, trainer)
        begun = time.monotonic()
        planted = find_planted_ulp(job, rollout, trainer)
        planted_seconds = time.monotonic() - begun
        begun = time.monotonic()
        weights = job.folder / "updated.safetensors"
        trainer.ask(Step(rollout=str(rollout), rate=RATE, save=str(weights)))
        pushed = engine.ask(Push(weights=str(weights), version=1))
        updated, _ = _recompute(job, obtain(None, experiment, lambda: engine, job).folder, engine, trainer)
        seconds = time.monotonic() - begun
        weights.unlink()
        assert engine.opened is not None
        assert trainer.opened is not None
        lines = {"rollout": engine.opened.lines, "trainer": trainer.opened.lines}
    said = "; ".join(pushed.lines) or "no reload defect found"
    replaced = tuple(line for line in lines["trainer"] if line.startswith("replaced:"))
    return Proven(exact, updated, after_N, replaced, said, seconds, planted, planted_seconds, lines)


def _recompute(job: Job, rollout: Path, engine: Session, trainer: Session) -> tuple[GapStats, torch.Tensor]:
    data = rollout_store.read(rollout)
    answer = Asker(job, rollout, {"rollout": engine, "trainer": trainer}).score("trainer", "recompute")
    gap = stats(data.logprob_N, answer.logprob_N, data.valid_N & answer.scored_N)
    return gap, (data.logprob_N.double() - answer.logprob_N.double()).abs()


def find_planted_ulp(job: Job, rollout: Path, trainer: Session) -> Planted:
    """Flip one bit of one element in the middle of the trainer and see that digests name the place and the logprobs
    move."""
    asker = Asker(job, rollout, {"trainer": trainer})
    clean = asker.score("trainer", "clean", CapturePlan())
    outputs = [
        tap
        for tap in clean.taps.rowed
        if tap.site.port == "out0" and tap.site.module.endswith("mlp") and tap.columns > 1
    ]
    target = outputs[len(outputs) // 2]
    data = rollout_store.read(rollout)
    sequence = max(range(len(data.sequences)), key=lambda i: len(data.sequences[i].tokens))
    position = len(data.sequences[sequence].prompt) - 1
    flip = Flip(site=target.site, sequence=sequence, position=position, column=0)
    planted = asker.score("trainer", "planted", CapturePlan(), (flip,))
    own, other = clean.taps, planted.taps
    pairs = [Pair(rollout=tap.site, trainer=tap.site, columns=None, wider="neither", by="place") for tap in own.rowed]
    differing = [counted for counted in by_digest(pairs, own, other) if counted.differing]
    first = str(differing[0].pair.trainer) if differing else "nothing"
    moved = stats(clean.logprob_N, planted.logprob_N, data.valid_N)
    # A tap records the value before an edit, so the first site that shows it is the first that reads the flipped
    # output. Whether one ulp reaches a logprob depends on the roundings after it; the digests must see it either way.
    after = [tap.order for tap in own.rowed if tap.order > target.order]
    found = bool(differing) and own.tap(first).order == min(after, default=-1) and differing[0].differing == 1
    place = f"sequence {sequence}, position {position}"
    text = f"planted in {target.site} ({place}); the first differing row is there, read by {first}"
    return Planted(found, text, moved)
