"""The gate's report as JUnit XML: one test case per axis."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from samebits.tools.schema.artifacts.regression import Throughput

if TYPE_CHECKING:
    from samebits.tools.schema.artifacts.regression import AxisRow, RegressionReport

SUITE = "samebits.gate"


def render(report: RegressionReport) -> str:
    """A required axis that did not run is a failure; another one is skipped."""
    cases = [_case(axis) for axis in report.axes]
    comparison = ElementTree.Element("testcase", classname=SUITE, name="comparison", time="0")
    if report.comparison.stats.nonzero != 1:
        ElementTree.SubElement(comparison, "failure", message="a flipped bit was not seen as one token")
    return _suite([comparison, *cases, *_speed(report)], report.seconds)


def render_error(message: str) -> str:
    """For a gate that came to no verdict."""
    case = ElementTree.Element("testcase", classname=SUITE, name="gate", time="0")
    ElementTree.SubElement(case, "error", message=_plain(message))
    return _suite([case], 0.0)


def _case(axis: AxisRow) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=SUITE, name=axis.name, time=f"{axis.seconds:.3f}")
    outcome = axis.outcome
    if outcome.status == "differs":
        stats = outcome.stats
        figures = f"{stats.nonzero} of {stats.tokens} tokens differ, {stats.nonfinite} not finite, max {stats.max:.3g}"
        _told(case, "failure", f"{outcome.way}: {figures}")
    elif outcome.status == "too_few":
        _told(case, "failure", f"{outcome.way}: {outcome.tokens} tokens compared, {outcome.needed} needed")
    elif outcome.status == "timed_out":
        _told(case, "error", f"over its limit of {outcome.limit_s:.0f} s: no verdict")
    elif outcome.status == "broke":
        _told(case, "error", outcome.reason)
    elif outcome.status == "vacuous":
        _told(case, "failure", outcome.reason)
    elif outcome.status == "not_run":
        _told(case, "failure" if axis.required else "skipped", f"not run: {outcome.reason}")
    lines = [f"{way.words}: {way.stats.nonzero} of {way.stats.tokens} tokens differ" for way in axis.compared]
    lines += [f"without effect: {text}" for text in axis.skipped]
    if axis.control is not None:
        seen = f"{axis.control.stats.nonzero} of {axis.control.stats.tokens} tokens differ"
        lines.append(f"control, {axis.control.disturbed}: {seen}")
    ElementTree.SubElement(case, "system-out").text = _plain("\n".join(lines))
    return case


def _speed(report: RegressionReport) -> list[ElementTree.Element]:
    measured = report.throughput
    if measured is None:
        return []
    case = ElementTree.Element("testcase", classname=SUITE, name="throughput", time="0")
    if not isinstance(measured, Throughput):
        _told(case, "failure" if measured.required else "skipped", f"not measured: {measured.reason}")
        return [case]
    case.set("time", f"{measured.seconds:.3f}")
    low, high = measured.span
    said = f"{measured.ratio:.3f} of the engine without samebits, any two runs {low:.3f} to {high:.3f}"
    if measured.verdict == "below":
        _told(case, "failure", f"{said}: below {measured.bar:.3f}")
    elif measured.verdict == "unclear":
        _told(case, "failure" if measured.required else "skipped", f"{said}: not told apart from {measured.bar:.3f}")
    ElementTree.SubElement(case, "system-out").text = said
    return [case]


def _told(case: ElementTree.Element, tag: str, message: str) -> None:
    ElementTree.SubElement(case, tag, message=_plain(message))


def _suite(cases: list[ElementTree.Element], seconds: float) -> str:
    def count(tag: str) -> str:
        return str(sum(case.find(tag) is not None for case in cases))

    suite = ElementTree.Element(
        "testsuite",
        name=SUITE,
        tests=str(len(cases)),
        failures=count("failure"),
        errors=count("error"),
        skipped=count("skipped"),
        time=f"{seconds:.3f}",
    )
    suite.extend(cases)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _plain(text: str) -> str:
    """Without characters that XML cannot hold."""
    return "".join(c for c in text if c in "\n\t" or ord(c) >= 32)
