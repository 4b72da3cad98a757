"""The gate's page and its JUnit XML: what is red looks red, nothing is fetched, every axis is one test case."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from samebits.tools.report import charts, gate, junit
from samebits.tools.schema.artifacts.gap import GapStats
from samebits.tools.schema.artifacts.regression import (
    AxisRow,
    Compared,
    ControlRow,
    Differs,
    Exact,
    Green,
    NotRun,
    Red,
    RegressionReport,
    TooFew,
    Unjudged,
    Vacuous,
)


def stats(nonzero: int) -> GapStats:
    return GapStats(tokens=80, nonzero=nonzero, nonfinite=0, max=0.5 * nonzero, mean=0.0, std=0.0, k3=0.0)


def way(nonzero: int) -> Compared:
    return Compared(words="all against alone", stats=stats(nonzero), due=80, ulps=(80 - nonzero, nonzero))


CONTROL = ControlRow(disturbed="one element of embed", stats=stats(9), ulps=(71, 0, 0, 9))
BIT = ControlRow(disturbed="one bit", stats=stats(1), ulps=(79, 1))
OUTCOMES: dict[str, Any] = {
    "exact": Exact(tokens=80),
    "differs": Differs(way="all against alone", stats=stats(3)),
    "too_few": TooFew(way="all against alone", tokens=3, needed=64),
    "vacuous": Vacuous(reason="the control did not fail"),
    "not_run": NotRun(reason="<no engine>"),
}


def report(status: str, *, required: bool = False, control: ControlRow = BIT) -> RegressionReport:
    axis = AxisRow(
        name="batch",
        required=required,
        outcome=OUTCOMES[status],
        compared=(way(3 if status == "differs" else 0),),
        skipped=("8 at a time: the largest batch was 8 both times",),
        control=CONTROL,
        seconds=1.5,
    )
    verdict = (
        Green(tokens=80, axes=("batch",))
        if status == "exact"
        else (Red if status == "differs" else Unjudged)(reasons=("batch: <because>",))
    )
    return RegressionReport(
        verdict=verdict,
        axes=(axis,),
        comparison=control,
        sequences=8,
        tokens=80,
        min_tokens=64,
        sides={"rollout": ("vllm <x>",)},
        seconds=2.0,
    )


def test_the_verdict_and_each_outcome_are_said_in_words_and_colour() -> None:
    page = gate.gate(report("exact"), ())
    assert 'class="verdict good">verdict: exact on 1 axes' in page
    assert "not proved: that trainer and rollout agree" in page, "batch alone was asked"
    for status in ("differs", "too_few", "vacuous"):
        made = gate.gate(report(status), ())
        assert 'class="verdict bad"' in made
        assert f'class="bad">{status.replace("_", " ")}</td>' in made
    assert 'class="soft">not run</td>' in gate.gate(report("not_run"), ())
    assert 'class="bad">not run (required)</td>' in gate.gate(report("not_run", required=True), ())


def test_nothing_is_fetched_and_text_is_escaped() -> None:
    made = gate.gate(report("not_run"), (0.0, 1e-6))
    assert not re.search(r"(src|href)\s*=|url\(|@import|https?://", made)
    assert "<no engine>" not in made
    assert "&lt;no engine&gt;" in made
    assert "no effect: 8 at a time" in made
    assert "control: one element of embed" in made
    assert "every valid token, nats" in made
    assert "every valid token, nats" not in gate.gate(report("exact"), ())


def test_the_histogram_shows_one_token_among_many() -> None:
    svg = charts.ulps([("after", "axes", (100_000,)), ("before", "controls", (10, 0, 1))], "label")
    heights = [float(h) for h in re.findall(r'<rect [^>]*height="([\d.]+)"', svg)]
    assert len(heights) == 3
    assert min(heights) > 5
    assert "controls: 1</title>" in svg
    assert "<rect" not in charts.ulps([("after", "axes", ())], "label")


@pytest.mark.parametrize(
    ("status", "required", "counts"),
    [
        ("exact", False, ("0", "0")),
        ("differs", False, ("1", "0")),
        ("too_few", False, ("1", "0")),
        ("vacuous", False, ("1", "0")),
        ("not_run", False, ("0", "1")),
        ("not_run", True, ("1", "0")),
    ],
)
def test_junit_counts_failures_and_skips(status: str, required: bool, counts: tuple[str, str]) -> None:
    suite = ElementTree.fromstring(junit.render(report(status, required=required)))[0]
    assert (suite.get("failures"), suite.get("skipped")) == counts
    assert suite.get("tests") == "2"
    assert [case.get("name") for case in suite] == ["comparison", "batch"]


def test_junit_of_a_blind_comparison_fails_and_of_no_verdict_is_an_error() -> None:
    blind = ControlRow(disturbed="one bit", stats=stats(0), ulps=(80,))
    assert ElementTree.fromstring(junit.render(report("exact", control=blind)))[0].get("failures") == "1"
    suite = ElementTree.fromstring(junit.render_error("the engine <died>\x00"))[0]
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")
