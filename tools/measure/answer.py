"""A GapReport as the flat answer of the verb."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from samebits.tools.schema.results import Result

if TYPE_CHECKING:
    from samebits.tools.job.job import Job
    from samebits.tools.measure.rollouts import Source
    from samebits.tools.schema.artifacts.gap import Axis, GapReport, GapStats
    from samebits.tools.schema.results import Cell

Row = dict[str, "Cell"]
Verdict = Literal["equal", "differs", "unjudged"]


def result_of(report: GapReport, folder: str, source: Source, job: Job) -> Result:
    """Verdict, summary, table and the next verb."""
    verdict, summary = _verdict(report)
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
    return (
        f"{stats.nonzero} of {stats.tokens} tokens differ, max {stats.max:.3g}, mean {stats.mean:.3g}, std "
        f"{stats.std:.3g}, k3 {stats.k3:.3g}" + (f", {stats.nonfinite} not finite" if stats.nonfinite else "")
    )


def unsound(report: GapReport) -> bool:
    """Step 1 failed: whatever else the report holds was not judged."""
    return report.weights.endswith("step 1 failed")


def _verdict(report: GapReport) -> tuple[Verdict, str]:
    stats = report.stats
    if stats.tokens == 0:
        return "unjudged", "No valid token was compared: every sampled token is masked, so nothing is proved."
    if unsound(report):
        return "unjudged", f"The check could not have failed, so it proves nothing. {report.could_fail}."
    said = [
        f"Exact: all {stats.tokens} logprobs have equal bits."
        if stats.exact
        else f"The sides differ: {figures(stats)}."
    ]
    if report.weights.startswith("differ"):
        said.append(f"The weights {report.weights}. Nothing further was asked: make them equal first.")
    elif report.not_numerics:
        first = report.not_numerics[0]
        said.append(
            f"Data or meaning, not numerics: {first.explanation}; it leaves {first.residual:.3g} of "
            f"{first.before:.3g} nats."
        )
    varying = [axis for axis in report.axes if axis.outcome.status == "varies"]
    said += [f"The {axis.side} side is not equal to itself ({axis.name}): {_outcome(axis)}." for axis in varying]
    return "equal" if stats.exact else "differs", " ".join(said)


def _outcome(axis: Axis) -> str:
    outcome = axis.outcome
    if outcome.status == "varies":
        return f"{figures(outcome.stats)}; trigger: {outcome.trigger}"
    return outcome.reason if outcome.status == "not_run" else axis.changed


def _row(name: str, outcome: str, detail: str, stats: GapStats | None = None, tokens: int | None = None) -> Row:
    return {
        "check": name,
        "outcome": outcome,
        "tokens": stats.tokens if stats else tokens,
        "nonzero": stats.nonzero if stats else None,
        "max": stats.max if stats else None,
        "mean": stats.mean if stats else None,
        "std": stats.std if stats else None,
        "k3": stats.k3 if stats else None,
        "detail": detail,
    }


def _rows(report: GapReport) -> list[Row]:
    stats = report.stats
    worst = report.worst[0] if report.worst else None
    where = f"worst: sequence {worst.sequence}, position {worst.position}, {worst.ulps} ulps" if worst else ""
    rows = [_row("rollout against trainer", "exact" if stats.exact else "differs", where, stats)]
    rows.append(_row("could it fail", "no" if unsound(report) else "yes", report.could_fail))
    rows.append(_row("weights", report.weights.split(" ")[0].rstrip(":"), report.weights))
    rows += [
        _row(f"cause: {c.cause}", f"leaves {c.residual:.3g} of {c.before:.3g}", c.explanation)
        for c in report.not_numerics
    ]
    for axis in report.axes:
        found = axis.outcome.stats if axis.outcome.status == "varies" else None
        rows.append(_row(f"{axis.side}: {axis.name}", axis.outcome.status, _outcome(axis), found, axis.tokens))
    return rows


def _next(report: GapReport, verdict: str, source: Source) -> str:
    if verdict == "unjudged":
        return "correct what the summary names, then samebits measure again"
    if report.weights.startswith("differ"):
        return "make the weights of both sides equal (same folder, same version), then samebits measure again"
    if report.not_numerics:
        return (
            f"correct {report.not_numerics[0].cause} in samebits.toml or in your pipeline, then samebits measure again"
        )
    varying = next((axis for axis in report.axes if axis.outcome.status == "varies"), None)
    if varying is not None:
        return f"make the {varying.side} side equal to itself first ({varying.name}), then samebits measure again"
    if verdict == "equal":
        return "samebits gate keeps it so"
    return (
        f"samebits diff --rollout {source.folder}"
        if source.engine
        else "samebits diff needs an engine: set [rollout] side, then samebits diff"
    )
