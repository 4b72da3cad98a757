"""A compiled rollout side: no hook runs inside its graph, so its operators are looked for with the same engine opened
eager, on the tokens of the compiled one. How far the two are apart is measured and said first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from samebits.tools.job.rollouts import obtain
from samebits.tools.job.sides import score_with
from samebits.tools.measure.answer import figures
from samebits.tools.measure.gap import stats
from samebits.tools.schema.passes import How
from samebits.tools.sides import rollout_store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from samebits.tools.diff.asking import Answer
    from samebits.tools.job.job import Job
    from samebits.tools.schema.artifacts.gap import GapStats
    from samebits.tools.schema.experiment import Experiment
    from samebits.tools.schema.requests import DiffRequest
    from samebits.tools.sides.protocol import RolloutData, Scores

NO_HOOKS = "no hook runs inside a compiled graph, so operators were looked for with the same engine opened eager"
NEXT = (
    'rollout.eager = true makes the rollout what was looked at; kernels = "samebits" on both sides has one arithmetic '
    "compiled and eager"
)


@dataclass(slots=True, frozen=True)
class Compiled:
    """The engine as it is configured, before it was closed."""

    rollout: Path
    plain: Scores
    other: Scores | None
    """Another way, where one was asked for."""


def ask(request: DiffRequest, job: Job, how: How | None = None, env: Mapping[str, str] | None = None) -> Compiled:
    """Open the compiled engine, obtain the rollout and score it, in another way too where one is given."""
    job.emit("compiled", "the engine as it is configured; its operators are looked for in an eager one")
    with job.open_side("rollout", request.experiment, env=env) as engine:
        rollout = obtain(request.rollout, request.experiment, lambda: engine, job).folder
        plain, _ = score_with(engine, job, "rollout", rollout, How())
        other = None if how is None else score_with(engine, job, "rollout", rollout, how)[0]
    return Compiled(rollout, plain, other)


def eager(request: DiffRequest, rollout: Path) -> DiffRequest:
    """The same request about the engine opened eager, on a rollout that is there."""
    experiment: Experiment = request.experiment
    config = experiment.rollout.model_copy(update={"eager": True})
    return request.model_copy(
        update={"experiment": experiment.model_copy(update={"rollout": config}), "rollout": str(rollout)}
    )


def between_ways(found: Compiled) -> GapStats:
    """Plain against the other way, in the compiled engine."""
    assert found.other is not None
    valid_N = rollout_store.read(found.rollout).valid_N
    both_N = valid_N & found.plain.scored_N & found.other.scored_N
    return stats(found.plain.logprob_N, found.other.logprob_N, both_N)


def said(found: Compiled, data: RolloutData, now: Answer) -> tuple[str, bool]:
    """Eager against compiled in words, and whether they are equal."""
    apart = stats(found.plain.logprob_N, now.logprob_N, data.valid_N & found.plain.scored_N & now.scored_N)
    held = stats(data.logprob_N, found.plain.logprob_N, data.valid_N & found.plain.scored_N)
    text = f"the rollout side runs compiled: {NO_HOOKS}. Eager against compiled: {figures(apart)}; "
    text += (
        "what follows holds for the compiled engine too"
        if apart.exact
        else "that part of the gap is in no operator named here"
    )
    if held.nonzero:
        text += (
            f". The compiled engine, asked again, does not give the logprobs that the rollout holds: {figures(held)}"
        )
    return text, apart.exact
