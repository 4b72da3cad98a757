"""A RegressionReport as the flat answer of the verb."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from samebits.tools.gate.regression.pieces import ELSEWHERE
from samebits.tools.gate.regression.write import LOCK
from samebits.tools.schema.artifacts.regression import Throughput
from samebits.tools.schema.results import Result

if TYPE_CHECKING:
    from samebits.tools.job.job import Job
    from samebits.tools.job.rollouts import Source
    from samebits.tools.schema.artifacts.regression import AxisRow, RegressionReport
    from samebits.tools.schema.results import Cell

DIFF = {
    "batch": "batch",
    "order": "batch",
    "decode_prefill": "decode_prefill",
    "chunked_prefill": "chunked_prefill",
    "prefix_hit": "prefix_hit",
    "trainer_rollout": "trainer",
}
"""Axes that `samebits diff --against` localises."""


def result_of(report: RegressionReport, folder: str, source: Source, job: Job) -> Result:
    """Verdict, summary, table and the next verb."""
    verdict = report.verdict
    ids = {
        "regression": folder,
        "report": f"{folder}/report.html",
        "rollout": os.path.relpath(source.folder, job.folder),
    }
    rows = (*(_row(axis) for axis in report.axes), *_speed(report))
    skipped = [axis.name for axis in report.axes if axis.outcome.status == "not_run"]
    also = f" Not run: {', '.join(skipped)}." if skipped else ""
    if verdict.kind == "green":
        if "trainer_rollout" not in verdict.axes:
            also += " Not proved: that trainer and rollout agree (trainer_rollout)."
        summary = (
            f"Exact: {len(verdict.axes)} axes, {verdict.tokens} comparisons of a token, every control failed.{also}"
        )
        return Result(
            verdict="equal",
            summary=summary,
            ids=ids | {"lock": LOCK},
            rows=rows,
            total=len(rows),
            next="keep samebits.lock with the code that was proved",
        )
    said = "; ".join(verdict.reasons)
    differs = verdict.kind == "red"
    return Result(
        verdict="differs" if differs else "unjudged",
        summary=f"{'Red' if differs else 'Not proved'}: {said}.{also}",
        ids=ids,
        rows=rows,
        total=len(rows),
        next=_next(report, source, job),
    )


def _row(axis: AxisRow) -> dict[str, Cell]:
    control = axis.control
    return {
        "axis": axis.name,
        "outcome": axis.outcome.status.replace("_", " "),
        "tokens": sum(way.stats.tokens for way in axis.compared),
        "nonzero": sum(way.stats.nonzero for way in axis.compared) if axis.compared else None,
        "control": "" if control is None else f"{control.stats.nonzero} differ",
        "detail": _detail(axis),
        "s": round(axis.seconds, 1),
    }


def _speed(report: RegressionReport) -> list[dict[str, Cell]]:
    measured = report.throughput
    if measured is None:
        return []
    row: dict[str, Cell] = {"axis": "throughput", "tokens": None, "nonzero": None, "control": ""}
    if not isinstance(measured, Throughput):
        return [row | {"outcome": "not run", "detail": measured.reason, "s": 0.0}]
    low, high = measured.span
    detail = (
        f"{measured.ratio:.2f} of the engine without samebits (any two runs: {low:.2f} to {high:.2f}; bar "
        f"{measured.bar:.2f})"
    )
    return [row | {"outcome": measured.verdict, "detail": detail, "s": round(measured.seconds, 1)}]


def _detail(axis: AxisRow) -> str:
    outcome = axis.outcome
    if outcome.status in ("not_run", "vacuous", "broke"):
        return outcome.reason
    if outcome.status == "timed_out":
        return f"over its limit of {outcome.limit_s:.0f} s: no verdict"
    if outcome.status == "differs":
        return outcome.way
    return "" if axis.control is None else axis.control.disturbed


def _next(report: RegressionReport, source: Source, job: Job) -> str:
    left = [axis.outcome for axis in report.axes if axis.red]
    if left and all(outcome.status == "not_run" and outcome.reason == ELSEWHERE for outcome in left):
        return f"the axes that are left: samebits gate --resume {job.folder}"
    differing = [axis for axis in report.axes if axis.outcome.status == "differs"]
    first = next((axis for axis in differing if axis.name in DIFF), differing[0] if differing else None)
    if left and all(outcome.status == "too_few" for outcome in left):
        return _more([axis for axis in report.axes if axis.red], source, job)
    if first is None:
        return "mend what the summary names, then samebits gate again"
    against = DIFF.get(first.name)
    if against is None:
        return f"{first.name} cannot be localised by operator: see docs/gate.md"
    return f"samebits diff --rollout {source.folder}" + ("" if against == "trainer" else f" --against {against}")


def _more(short: list[AxisRow], source: Source, job: Job) -> str:
    """What gives every comparison enough tokens. Each axis compares in proportion to the sequences, or all of them."""
    lost = [axis.name for axis in short if any(way.stats.tokens < way.due for way in axis.compared)]
    if lost:
        return f"{lost[0]} lost tokens, which more of them do not mend: see its side's log in {job.folder}"
    count = len(source.data.sequences)
    enough = count * max(
        math.ceil(axis.outcome.needed / max(axis.outcome.tokens, 1))
        for axis in short
        if axis.outcome.status == "too_few"
    )
    if source.generated:
        return f"give it more tokens, workload.prompts={enough}, then samebits gate again"
    return f"give it a rollout of {enough} sequences (this one has {count}), then samebits gate again"
