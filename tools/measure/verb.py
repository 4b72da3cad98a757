"""`samebits measure`: rollout, recompute, GapReport.

Steps 1 to 3 of docs/how-a-difference-is-found.md, in this order.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from samebits.tools.job.rollouts import obtain
from samebits.tools.job.sides import Sides
from samebits.tools.measure import axes, could_fail, gap, ways
from samebits.tools.measure.answer import result_of
from samebits.tools.measure.causes import Gap, explains, find_causes
from samebits.tools.measure.dtypes import apart
from samebits.tools.measure.notes import notes
from samebits.tools.measure.weights_check import WeightsAnswer, compare_weights
from samebits.tools.schema.artifacts.gap import Axis, GapReport, NotRun
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.passes import Reading
from samebits.tools.sides.scoring.logprob import Processing
from samebits.tools.store import artifact, fingerprint

if TYPE_CHECKING:
    from samebits.tools.job.job import Job
    from samebits.tools.job.rollouts import Source
    from samebits.tools.job.sides import Role
    from samebits.tools.measure.could_fail import Evidence
    from samebits.tools.schema.artifacts.gap import NotNumerics
    from samebits.tools.schema.artifacts.weights import SideWeights
    from samebits.tools.schema.requests import MeasureRequest
    from samebits.tools.schema.results import Result
    from samebits.tools.sides.protocol import Scores


@dataclass(slots=True)
class Rollouts:
    """What the rollout side was asked while it was open for the first time."""

    plain: Scores
    evidence: Evidence
    weights: SideWeights | None
    why_no_weights: str


@dataclass(slots=True)
class Findings:
    """What the steps found so far."""

    source: Source
    rollout: Rollouts | None
    """None: the rollout is a file."""
    trainer: Scores
    evidence: Evidence
    weights: WeightsAnswer = field(default_factory=lambda: WeightsAnswer(None, "not checked: step 1 failed"))
    causes: tuple[NotNumerics, ...] = ()
    axes: tuple[Axis, ...] = ()


def run_measure(request: MeasureRequest, job: Job) -> Result:
    """Carry out a measure request; writes a GapReport.

    Raises:
        UserError: bad input of any kind; SideDied: a side ended.
    """
    asked = axes.chosen(request.axes)
    with Sides(job, request.experiment) as sides:
        job.prepare("trainer", request.experiment)
        source = obtain(request.rollout, sides.experiment, lambda: sides.session("rollout"), job)
        rollout = _ask_rollout(sides, source) if source.engine else None
        job.emit("score", "recomputing the logprobs on the trainer side")
        trainer, _ = sides.score("trainer", source.folder)
        job.emit("could_fail", "trainer: moving one element by one ulp")
        evidence = could_fail.check(could_fail.on(sides, "trainer", source.folder), "trainer", source.data, trainer)
        found = Findings(source, rollout, trainer, could_fail.both(evidence, rollout.evidence) if rollout else evidence)
        if found.evidence.sound:
            job.emit("data", "weights, and causes with a closed form")
            found.weights = _weights(sides, rollout)
            found.causes = _causes(sides, found)
        found.axes = _axes(sides, found, asked)
        report, folder = _write(sides, found)
    return result_of(report, folder, source, job)


def _ask_rollout(sides: Sides, source: Source) -> Rollouts:
    """Everything before the axes, so that on one GPU the engine need not start again for it."""
    plain, _ = sides.score("rollout", source.folder)
    sides.job.emit("could_fail", "rollout side: moving one element by one ulp")
    evidence = could_fail.check_rollout(sides, source.folder, source.data, plain)
    try:
        return Rollouts(plain, evidence, sides.weights("rollout"), "")
    except UserError as error:
        return Rollouts(plain, evidence, None, str(error))


def _weights(sides: Sides, rollout: Rollouts | None) -> WeightsAnswer:
    if rollout is None:
        return WeightsAnswer(None, "not checked: the rollout is a file, there is no engine to read weights from")
    if rollout.weights is None:
        return WeightsAnswer(None, f"not checked: {rollout.why_no_weights}")
    return compare_weights(rollout.weights, sides.weights("trainer"))


def _causes(sides: Sides, found: Findings) -> tuple[NotNumerics, ...]:
    data, trainer = found.source.data, found.trainer
    if found.weights.equal is False or gap.stats(data.logprob_N, trainer.logprob_N, data.valid_N).exact:
        return ()
    own = Processing.of(data)
    processed = Reading(temperature=own.temperature, top_p=own.top_p, top_k=own.top_k)
    return find_causes(
        Gap(data, trainer.logprob_N, lambda readings: sides.readings(found.source.folder, readings), processed)
    )


def _axes(sides: Sides, found: Findings, asked: tuple[str, ...]) -> tuple[Axis, ...]:
    """Step 3: trainer first (it is open), then the rollout side. Nothing runs while an earlier step fails."""
    blocked = _blocked(found)
    if blocked:
        return tuple(_not_run("trainer" if name == "micro_batch" else "rollout", name, blocked) for name in asked)
    out: list[Axis | None] = []
    for name in axes.of("trainer", asked):
        sides.job.emit("axes", f"trainer against itself: {name}")
        out.append(axes.run(sides, "trainer", name, found.source.folder, found.source.data, found.trainer))
    names = axes.of("rollout", asked)
    if not found.source.engine:
        out += [_not_run("rollout", name, "the rollout is a file: there is no engine to ask") for name in names]
    elif names:
        assert found.rollout is not None
        out += _rollout_axes(sides, found, found.rollout.plain, names)
    return tuple(axis for axis in out if axis is not None)


def _rollout_axes(sides: Sides, found: Findings, plain: Scores, names: list[str]) -> list[Axis | None]:
    source = found.source
    out: list[Axis | None] = []
    for name in names:
        if not ways.lacks(name, plain):
            sides.job.emit("axes", f"rollout side against itself: {name}")
        if name == "repeat" and source.generated:
            both_N = source.data.valid_N & plain.scored_N
            free = gap.stats(source.data.logprob_N, plain.logprob_N, both_N)
            if free.nonzero:
                out.append(axes.forced_differs(free))
                continue
        out.append(axes.run(sides, "rollout", name, source.folder, source.data, plain))
    return out


def _blocked(found: Findings) -> str:
    if not found.evidence.sound:
        return "step 1 failed: the check could not have failed"
    if found.weights.equal is False:
        return "the weights differ: nothing after that means anything"
    if found.causes and explains(found.causes[0]):
        return f"data or meaning first: {found.causes[0].cause}"
    return ""


def _not_run(side: Role, name: str, reason: str) -> Axis:
    return Axis.model_validate(
        {"side": side, "name": name, "tokens": 0, "outcome": NotRun(reason=reason), "changed": ""}
    )


def _write(sides: Sides, found: Findings) -> tuple[GapReport, str]:
    data, trainer_N = found.source.data, found.trainer.logprob_N
    described = {
        role: (*(f"{key}: {value}" for key, value in done.facts.items()), *done.lines)
        for role, done in sides.described.items()
    }
    described.setdefault("rollout", (found.source.origin,))
    report = GapReport(
        stats=gap.stats(data.logprob_N, trainer_N, data.valid_N),
        sequences=gap.per_sequence(data.sequences, data.logprob_N, trainer_N, data.valid_N),
        worst=gap.worst_tokens(data.sequences, data.logprob_N, trainer_N, data.valid_N),
        not_numerics=found.causes,
        weights=found.weights.word,
        weights_text=found.weights.text,
        axes=found.axes,
        sound=found.evidence.sound,
        unsteady=found.evidence.unsteady,
        could_fail=found.evidence.text,
        notes=notes(data, trainer_N),
        two_dtypes=apart(sides.described.get("rollout"), sides.described.get("trainer")),
        sides=described,
        made_from={"rollout": artifact.identity(found.source.folder)},
        environment=fingerprint.environment(os.environ | dict(sides.experiment.rollout.env)),
    )
    folder = sides.job.new("gap")
    tensors = {"rollout": data.logprob_N, "trainer": trainer_N, "valid": data.valid_N}
    return artifact.write(folder, report, {"gap.safetensors": tensors}), folder.name
