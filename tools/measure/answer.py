"""A GapReport as the flat answer of the verb."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Literal

from samebits.tools.measure import dtypes
from samebits.tools.measure.causes import explains
from samebits.tools.measure.remedies import remedy
from samebits.tools.schema.results import Result

if TYPE_CHECKING:
    from samebits.tools.job.job import Job
    from samebits.tools.job.rollouts import Source
    from samebits.tools.schema.artifacts.gap import Axis, GapReport, GapStats, NotNumerics
    from samebits.tools.schema.results import Cell

Row = dict[str, "Cell"]
Verdict = Literal["equal", "differs", "unjudged"]
NATS = 1.0
"""A difference of one token above this is no rounding of a forward pass."""
NONE_FINITE = "none finite"
WEIGHTS = {"equal": "equal", "differ": "differ", "unchecked": "not checked"}


def result_of(report: GapReport, folder: str, source: Source, job: Job) -> Result:
    """Verdict, summary, table and the next verb."""
    verdict, summary = _verdict(report, source)
    rows = tuple(_rows(report))
    return Result(
        verdict=verdict,
        summary=summary,
        ids={"gap": folder, "rollout": os.path.relpath(source.folder, job.folder)},
        rows=rows,
        total=len(rows),
        next=_next(report, verdict, source),
    )


def figures(stats: GapStats) -> str:
    """The figures of a comparison in one line."""
    sizes = (
        f"max {stats.max:.3g}, mean {stats.mean:.3g}, std {stats.std:.3g}, k3 {stats.k3:.3g}"
        if math.isfinite(stats.max)
        else "none finite on both sides"
    )
    bad = f", {stats.nonfinite} not finite" if stats.nonfinite else ""
    return f"{stats.nonzero} of {stats.tokens} tokens differ, {sizes}{bad}"


def _verdict(report: GapReport, source: Source) -> tuple[Verdict, str]:
    stats = report.stats
    if stats.tokens == 0:
        why = "every sampled token is masked" if source.data.valid_N.numel() else "no row holds a sampled token"
        return "unjudged", f"No valid token was compared: {why}, so nothing is proved."
    if report.unsteady:
        return "unjudged", f"Nothing can be compared with a side that is not equal to itself. {report.could_fail}."
    if not report.sound:
        return "unjudged", f"The check could not have failed, so it proves nothing. {report.could_fail}."
    said = [
        f"Exact: all {stats.tokens} logprobs have equal bits."
        if stats.exact
        else f"The sides differ: {figures(stats)}."
    ]
    if report.two_dtypes:
        said.append(f"They are of two dtypes: {report.two_dtypes}.")
    said += report.notes
    if report.weights == "differ":
        said.append(f"The weights {report.weights_text}. Nothing further was asked: make them equal first.")
    said += [
        said_of(cause, first=k == 0) for k, cause in enumerate(report.not_numerics) if k == 0 or not explains(cause)
    ]
    varying = [axis for axis in report.axes if axis.outcome.status == "varies"]
    said += [f"The {axis.side} side is not equal to itself ({axis.name}): {_outcome(axis)}." for axis in varying]
    return "equal" if stats.exact else "differs", " ".join(said)


def said_of(cause: NotNumerics, first: bool = True) -> str:
    """A cause of data or meaning as a sentence; one that explains little is not called the explanation."""
    left = f"it leaves {cause.residual:.3g} of {cause.before:.3g} nats"
    if explains(cause):
        return f"Data or meaning, not numerics: {cause.explanation}; {left}."
    rest = "The rest is numerics or another cause" if first else "It is not what makes the rest"
    return f"Present, explains little: {cause.explanation}; {left}. {rest}."


def _outcome(axis: Axis) -> str:
    outcome = axis.outcome
    if outcome.status == "varies":
        return f"{figures(outcome.stats)}; trigger: {outcome.trigger}"
    return outcome.reason if outcome.status == "not_run" else axis.changed


def _row(name: str, outcome: str, detail: str, stats: GapStats | None = None, tokens: int | None = None) -> Row:
    def size(value: float) -> Cell:
        if math.isfinite(value):
            return value
        return NONE_FINITE if stats is not None and stats.tokens else None

    return {
        "check": name,
        "outcome": outcome,
        "tokens": stats.tokens if stats else tokens,
        "nonzero": stats.nonzero if stats else None,
        "not finite": stats.nonfinite if stats else None,
        "max": size(stats.max) if stats else None,
        "mean": size(stats.mean) if stats else None,
        "std": size(stats.std) if stats else None,
        "k3": size(stats.k3) if stats else None,
        "detail": detail,
    }


def _rows(report: GapReport) -> list[Row]:
    stats, empty = report.stats, report.stats.tokens == 0
    judged = "nothing compared" if empty else "exact" if stats.exact else "differs"
    rows = [_row("rollout against trainer", judged, _worst(report), stats)]
    seen = "nothing compared" if empty else "yes" if report.sound else "no"
    rows.append(_row("could it fail", seen, report.could_fail))
    rows.append(_row("weights", WEIGHTS[report.weights], report.weights_text))
    rows += [_row("note", "read", note) for note in report.notes]
    rows += [
        _row(
            f"cause: {c.cause}",
            f"leaves {c.residual:.3g} of {c.before:.3g}",
            c.explanation if explains(c) else f"present, explains little: {c.explanation}",
        )
        for c in report.not_numerics
    ]
    for axis in report.axes:
        found = axis.outcome.stats if axis.outcome.status == "varies" else None
        rows.append(_row(f"{axis.side}: {axis.name}", axis.outcome.status, _outcome(axis), found, axis.tokens))
    if not any(row["not finite"] for row in rows):
        for row in rows:
            del row["not finite"]
    return rows


def _worst(report: GapReport) -> str:
    if not report.worst:
        return ""
    worst = report.worst[0]
    far = f"{worst.ulps} ulps" if worst.ulps >= 0 else f"not finite (rollout {worst.rollout}, trainer {worst.trainer})"
    return f"worst: sequence {worst.sequence}, position {worst.position}, {far}"


def _next(report: GapReport, verdict: str, source: Source) -> str:
    if report.unsteady and report.stats.tokens:
        return "samebits diff names the operator of that side"
    if verdict == "unjudged":
        return "correct what the summary names, then samebits measure again"
    if report.two_dtypes and verdict == "differs":
        return f"{dtypes.NEXT}, then samebits measure again"
    if report.weights == "differ":
        return "make the weights of both sides equal (same folder, same version), then samebits measure again"
    if report.not_numerics:
        # A weak one too: with it in place no bits can become equal.
        return f"{remedy(report.not_numerics[0].cause)}, then samebits measure again"
    varying = next((axis for axis in report.axes if axis.outcome.status == "varies"), None)
    if varying is not None:
        return f"make the {varying.side} side equal to itself first ({varying.name}), then samebits measure again"
    if verdict == "equal":
        return "samebits gate keeps it so"
    if not bool(source.data.logprob_N[source.data.valid_N].isfinite().all()):
        return (
            "find out why the rollout side reports logprobs that are not finite, or mask them, then samebits measure "
            "again"
        )
    if source.engine:
        return f"samebits diff --rollout {source.folder}"
    if report.stats.max > NATS:
        return (
            f"max {report.stats.max:.3g} nats is no rounding: wrong data, not kernels. Check the rows (token ids, "
            f"logprobs one place off, temperature and top-p on record) and the model (the weights that sampled them), "
            f"then samebits measure again"
        )
    return "samebits diff needs an engine: set [rollout] side, then samebits diff"
