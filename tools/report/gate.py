"""The gate's page: verdict, axes with their controls, distances in ulps, per-token differences, environment."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from markupsafe import Markup

from samebits.tools.report import charts
from samebits.tools.report.page import environment
from samebits.tools.schema.artifacts.regression import Throughput

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
            speed=_speed(report),
            tokens_chart=Markup(charts.token_differences((), differences, TOKENS)) if differences else "",
        )
    )


RATES = "sampled tokens per second: median, and the slowest and fastest run"


def rates(rows: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Bars of tokens per second, one per engine: (name, runs)."""
    top = max((max(runs) for _, runs in rows), default=0.0) or 1.0
    return charts.bars(
        [(name, median(runs) / top, f"{median(runs):.0f} ({min(runs):.0f}-{max(runs):.0f})") for name, runs in rows],
        RATES,
        "after",
    )


def _speed(report: RegressionReport) -> tuple[str, str, str] | None:
    """Style class, words, chart."""
    measured = report.throughput
    if measured is None:
        return None
    if not isinstance(measured, Throughput):
        return "bad" if measured.required else "soft", f"not measured: {measured.reason}", ""
    low, high = measured.span
    words = (
        f"{measured.ratio:.2f} of the engine without samebits (medians of {len(measured.own.runs)} runs; any two runs "
        f"give {low:.2f} to {high:.2f}); the bar is {measured.bar:.2f}: {VERDICT[measured.verdict]}"
    )
    css = {"above": "good", "below": "bad", "unclear": "bad" if measured.required else "soft"}[measured.verdict]
    return css, words, Markup(rates([(rate.what, rate.runs) for rate in (measured.own, measured.stock)]))


VERDICT = {
    "above": "passed",
    "below": "too slow",
    "unclear": "no verdict, the noise of this machine reaches over the bar",
}
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
        agree = "" if "trainer_rollout" in verdict.axes else "; not proved: that trainer and rollout agree"
        return "good", f"exact on {len(verdict.axes)} axes ({verdict.tokens} comparisons of a token){agree}"
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
    if axis.outcome.status in ("not_run", "vacuous", "broke") and axis.outcome.reason != "; ".join(axis.skipped):
        lines.append(Line(axis.outcome.reason, None, "bad" if axis.red else "soft"))
    if axis.outcome.status == "timed_out":
        lines.append(Line(f"over its limit of {axis.outcome.limit_s:.0f} s: no verdict", None, "bad"))
    if axis.outcome.status == "too_few":
        lines.append(Line(f"{axis.outcome.tokens} tokens compared, {axis.outcome.needed} needed", None, "bad"))
    return lines
