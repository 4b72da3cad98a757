"""The gate's page: verdict, axes with their controls, distances in ulps, per-token differences, environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from samebits.tools.report import charts
from samebits.tools.report.page import environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from samebits.tools.schema.artifacts.gap import GapStats
    from samebits.tools.schema.artifacts.regression import AxisRow, RegressionReport


@dataclass(slots=True, frozen=True)
class Line:
    """One line of an axis."""

    text: str
    stats: GapStats | None
    css: str


def gate(report: RegressionReport, differences: Sequence[float]) -> str:
    """The whole page.

    Args:
        differences: |reported - recomputed| in nats of every valid token; empty when the trainer was not asked.
    """
    ways = _added(way.ulps for axis in report.axes for way in axis.compared)
    controls = _added(axis.control.ulps for axis in report.axes if axis.control is not None)
    histogram = charts.ulps([("after", "the axes", ways), ("before", "their controls", controls)], HISTOGRAM)
    return (
        environment()
        .get_template("gate.html.jinja")
        .render(
            report=report,
            verdict=_verdict(report),
            matrix=[(axis, _mark(axis), _lines(axis)) for axis in report.axes],
            histogram=Markup(histogram),
            tokens_chart=Markup(charts.token_differences((), differences, TOKENS)) if differences else "",
        )
    )


HISTOGRAM = "tokens by distance in ulps: the axes, and their negative controls"
TOKENS = "|rollout - trainer| of every valid token, nats"


def _added(histograms: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    total: list[int] = []
    for counts in histograms:
        total += [0] * (len(counts) - len(total))
        for bucket, count in enumerate(counts):
            total[bucket] += count
    return tuple(total)


def _verdict(report: RegressionReport) -> tuple[str, str]:
    """Style class and words."""
    verdict = report.verdict
    if verdict.kind == "green":
        return "good", f"exact on {len(verdict.axes)} axes ({verdict.tokens} comparisons of a token)"
    return "bad", "bits differ" if verdict.kind == "red" else "not proved"


def _mark(axis: AxisRow) -> tuple[str, str]:
    """Style class and words of an axis."""
    status = axis.outcome.status
    if status == "exact":
        return "good", "exact"
    return ("bad" if axis.red else "soft"), status.replace("_", " ") + (" (required)" if axis.required else "")


def _lines(axis: AxisRow) -> list[Line]:
    """Every way, what had no effect, the control, and why nothing is proved where nothing is."""
    ways = [
        Line(way.words, way.stats, "bad" if way.stats.nonzero or way.stats.nonfinite else "") for way in axis.compared
    ]
    lines = ways + [Line(f"no effect: {text}", None, "soft") for text in axis.skipped]
    if axis.control is not None:
        lines.append(Line(f"control: {axis.control.disturbed}", axis.control.stats, "soft"))
    if axis.outcome.status in ("not_run", "vacuous") and axis.outcome.reason != "; ".join(axis.skipped):
        lines.append(Line(axis.outcome.reason, None, "bad" if axis.red else "soft"))
    if axis.outcome.status == "too_few":
        lines.append(Line(f"{axis.outcome.tokens} tokens compared, {axis.outcome.needed} needed", None, "bad"))
    return lines
