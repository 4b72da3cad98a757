"""Two reports of the gate side by side: what changed between two releases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from markupsafe import Markup

from samebits.tools.report import charts
from samebits.tools.report.gate import rates
from samebits.tools.report.page import environment
from samebits.tools.schema.artifacts.regression import Throughput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from samebits.tools.schema.artifacts.regression import AxisRow, RegressionReport

Change = Literal["same", "better", "worse", "new", "gone", "other"]
CSS = {"same": "soft", "better": "good", "worse": "bad", "gone": "bad", "new": "", "other": ""}


@dataclass(slots=True, frozen=True)
class Side:
    """One axis in one report."""

    words: str
    css: str
    differ: str
    control: str
    seconds: str


@dataclass(slots=True, frozen=True)
class Row:
    """One axis in both."""

    name: str
    old: Side | None
    new: Side | None
    change: Change


def compared(old: RegressionReport, new: RegressionReport) -> list[Row]:
    """Every axis of either, in the order of the newer one."""
    before = {axis.name: axis for axis in old.axes}
    after = {axis.name: axis for axis in new.axes}
    names = list(dict.fromkeys([*after, *before]))
    return [
        Row(name, _side(before.get(name)), _side(after.get(name)), _change(before.get(name), after.get(name)))
        for name in names
    ]


def worse(rows: list[Row]) -> list[str]:
    """Axes that the newer report no longer proves."""
    return [row.name for row in rows if row.change in ("worse", "gone")]


def red(new: RegressionReport) -> list[str]:
    """Axes that make the newer report red by themselves, whatever they were before."""
    return [axis.name for axis in new.axes if axis.red]


def changes(old: RegressionReport, new: RegressionReport) -> list[tuple[str, str, str]]:
    """(name, before, now) of everything of the environment and of what ran that is not equal."""
    pairs = {"machine": (old.environment.platform, new.environment.platform)}
    pairs["Python"] = (old.environment.python, new.environment.python)
    for part in ("packages", "variables", "facts"):
        pairs |= _both(getattr(old.environment, part), getattr(new.environment, part))
    for role in sorted({*old.sides, *new.sides}):
        told = [_facts(report.sides.get(role, ())) for report in (old, new)]
        pairs |= {f"{role}: {name}": values for name, values in _both(*told).items()}
    pairs["rollout (sha256)"] = (old.made_from.get("rollout", ""), new.made_from.get("rollout", ""))
    return [(name, *values) for name, values in pairs.items() if values[0] != values[1]]


def page(old: RegressionReport, new: RegressionReport, names: tuple[str, str]) -> str:
    """The whole page.

    Args:
        names: how to call the two, for example their folders.
    """
    rows = compared(old, new)
    histogram = charts.ulps([("before", names[0], _ulps(old)), ("after", names[1], _ulps(new))], HISTOGRAM)
    speeds = [(report, report.throughput) for report in (old, new)]
    bars = [
        (f"{name}, {rate.what}", rate.runs)
        for name, (_, measured) in zip(names, speeds, strict=True)
        if isinstance(measured, Throughput)
        for rate in (measured.own, measured.stock)
    ]
    return (
        environment()
        .get_template("gate_compare.html.jinja")
        .render(
            old=old,
            new=new,
            names=names,
            rows=rows,
            css=CSS,
            red=red(new),
            worse=worse(rows),
            changes=changes(old, new),
            histogram=Markup(histogram),
            rates=Markup(rates(bars)) if bars else "",
        )
    )


HISTOGRAM = "tokens by distance in ulps, all axes together: the older report and the newer one"


def _side(axis: AxisRow | None) -> Side | None:
    if axis is None:
        return None
    status = axis.outcome.status
    css = "good" if status == "exact" else "bad" if axis.red else "soft"
    tokens = sum(way.stats.tokens for way in axis.compared)
    differ = f"{sum(way.stats.nonzero for way in axis.compared)} / {tokens}" if axis.compared else ""
    control = "" if axis.control is None else f"{axis.control.stats.nonzero} / {axis.control.stats.tokens}"
    return Side(status.replace("_", " "), css, differ, control, f"{axis.seconds:.1f}")


def _change(old: AxisRow | None, new: AxisRow | None) -> Change:
    if old is None:
        return "new"
    if new is None:
        return "gone" if old.outcome.status == "exact" else "other"
    before, now = old.outcome.status, new.outcome.status
    if before == now:
        return "same"
    if now == "exact":
        return "better"
    return "worse" if before == "exact" or now == "differs" else "other"


def _ulps(report: RegressionReport) -> tuple[int, ...]:
    total: list[int] = []
    for axis in report.axes:
        for way in axis.compared:
            total += [0] * (len(way.ulps) - len(total))
            for bucket, count in enumerate(way.ulps):
                total[bucket] += count
    return tuple(total)


def _facts(lines: tuple[str, ...]) -> dict[str, str]:
    parts = (line.partition(": ") for line in lines)
    return {name: value for name, sign, value in parts if sign and " " not in name}


def _both(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    return {name: (old.get(name, ""), new.get(name, "")) for name in sorted({*old, *new})}
