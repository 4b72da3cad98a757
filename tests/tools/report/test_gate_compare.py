"""Two reports of the gate side by side: what got worse is said first, and every change of the environment."""

from __future__ import annotations

import re
from typing import Any

import pytest

from samebits.tools.report import gate, gate_compare
from samebits.tools.schema.artifacts.base import Environment
from samebits.tools.schema.artifacts.gap import GapStats
from samebits.tools.schema.artifacts.regression import (
    AxisRow,
    Compared,
    ControlRow,
    Differs,
    Exact,
    Green,
    NotRun,
    Rate,
    RegressionReport,
    Throughput,
    TimedOut,
)


def stats(nonzero: int) -> GapStats:
    return GapStats(tokens=80, nonzero=nonzero, nonfinite=0, max=0.5 * nonzero, mean=0.0, std=0.0, k3=0.0)


BIT = ControlRow(disturbed="one bit", stats=stats(1), ulps=(79, 1))
OUTCOMES: dict[str, Any] = {
    "exact": Exact(tokens=80),
    "differs": Differs(way="all against alone", stats=stats(3)),
    "not_run": NotRun(reason="no engine"),
    "timed_out": TimedOut(limit_s=9.0),
}
SPEED = Throughput(
    own=Rate(what="of the experiment", runs=(90.0, 91.0)),
    stock=Rate(what="without samebits", runs=(100.0, 101.0)),
    bar=0.7,
    required=False,
    seconds=3.0,
)


def report(torch: str = "2.13.0", **outcomes: str) -> RegressionReport:
    axes = tuple(
        AxisRow(
            name=name,  # type: ignore[arg-type]
            required=False,
            outcome=OUTCOMES[status],
            compared=(Compared(words="all", stats=stats(3 * (status == "differs")), due=80, ulps=(77, 3)),),
            control=ControlRow(disturbed="elements", stats=stats(9), ulps=(71, 0, 9)),
            seconds=1.0,
        )
        for name, status in outcomes.items()
    )
    return RegressionReport(
        verdict=Green(tokens=80, axes=("batch",)),
        axes=axes,
        throughput=SPEED,
        comparison=BIT,
        sequences=8,
        tokens=80,
        min_tokens=64,
        sides={"rollout": (f"torch: {torch}", "isa: vec", "a line of words: not a fact")},
        seconds=4.0,
        made_from={"rollout": "ab"},
        environment=Environment(platform="x86", packages={"torch": torch}),
    )


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ("exact", "exact", "same"),
        ("exact", "differs", "worse"),
        ("exact", "not_run", "worse"),
        ("exact", "timed_out", "worse"),
        ("not_run", "differs", "worse"),
        ("differs", "exact", "better"),
        ("timed_out", "not_run", "other"),
    ],
)
def test_an_axis_that_is_no_longer_proved_got_worse(old: str, new: str, change: str) -> None:
    rows = gate_compare.compared(report(batch=old), report(batch=new))
    assert [(row.name, row.change) for row in rows] == [("batch", change)]
    assert gate_compare.worse(rows) == (["batch"] if change == "worse" else [])


def test_an_axis_that_is_gone_is_a_loss_and_a_new_one_is_none() -> None:
    rows = gate_compare.compared(report(batch="exact"), report(order="exact"))
    assert {row.name: row.change for row in rows} == {"order": "new", "batch": "gone"}
    assert gate_compare.worse(rows) == ["batch"]
    rows = gate_compare.compared(report(batch="not_run"), report(order="exact"))
    assert gate_compare.worse(rows) == [], "it proved nothing before"


@pytest.mark.parametrize("before", [{}, {"batch": "differs"}, {"batch": "exact"}])
def test_an_axis_that_is_red_now_is_said_whatever_it_was_before(before: dict[str, str]) -> None:
    old, new = report(order="exact", **before), report(order="exact", batch="differs")
    assert gate_compare.red(new) == ["batch"]
    page = gate_compare.page(old, new, ("1.0", "1.1"))
    assert '<p class="verdict bad">red: batch; ' in page
    assert "nothing got worse" not in page
    assert gate_compare.red(old) == (["batch"] if before == {"batch": "differs"} else [])


def test_an_axis_that_did_not_run_and_need_not_is_not_red() -> None:
    assert gate_compare.red(report(batch="not_run", order="exact")) == []


def test_what_else_changed_is_listed_once_each() -> None:
    changes = gate_compare.changes(report(batch="exact"), report("2.14.0", batch="exact"))
    assert changes == [("torch", "2.13.0", "2.14.0"), ("rollout: torch", "2.13.0", "2.14.0")]
    assert gate_compare.changes(report(batch="exact"), report(batch="exact")) == []


def test_the_page_is_one_file_that_names_both_and_fetches_nothing() -> None:
    page = gate_compare.page(report(batch="exact"), report("2.14.0", batch="differs"), ("<1.0>", "1.1"))
    assert "no longer proved: batch" in page
    assert "&lt;1.0&gt;" in page
    assert "<1.0>" not in page
    assert "2.14.0" in page
    assert "100 (100-101)" in page
    assert not re.search(r"(src|href)=|@import|url\(", page)


def test_the_gates_own_page_shows_throughput_with_its_spread() -> None:
    page = gate.gate(report(batch="exact"), ())
    assert "0.90 of the engine without samebits" in page
    assert "any two runs give 0.89 to 0.91" in page
    assert "passed" in page
