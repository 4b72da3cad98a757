"""The page of an RL run: what it says of both arms, of a stopped one, of corrections; its curves."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from samebits.tools.report import curves, rl
from samebits.tools.report.curves import Curve
from samebits.tools.schema.artifacts.gap import GapStats
from samebits.tools.schema.artifacts.rl import Compared, CorrectionRow, RlReport, Run, StepLine

SVG = "{http://www.w3.org/2000/svg}"


def gap(nonzero: int) -> GapStats:
    k3 = 1e-5 * nonzero
    return GapStats(tokens=8, nonzero=nonzero, nonfinite=0, max=0.25 * nonzero, mean=0.0, std=0.0, k3=k3)


def line(step: int, nonzero: int) -> StepLine:
    return StepLine(
        step=step,
        reward=0.25 + step / 10,
        solved=0.0,
        gap=gap(nonzero),
        gradient_norm=0.5,
        loss=0.0,
        entropy=1.0,
        tokens=8,
        version=step,
        staleness=gap(nonzero),
        mean_weight=1.0,
        effective=1.0,
        kept=1.0,
        seconds={"rollout": 0.5, "update": 0.25},
        digest=f"{step:032x}",
    )


def report(what: str = "train", not_exact: str = "") -> RlReport:
    runs = (
        Run(arm="stock", lag=0, steps=tuple(line(k, 2) for k in range(4))),
        Run(arm="exact", lag=0, steps=tuple(line(k, 0) for k in range(4)), not_exact=not_exact),
    )
    return RlReport.model_validate(
        {"what": what, "model": "<tiny>", "setting": "sort", "runs": runs, "sides": {"stock": ("a < b",)}, "seconds": 1}
    )


def test_both_arms_stand_in_the_table_and_in_every_chart() -> None:
    made = rl.page(report())
    assert "verdict: exact at each of 4 steps of the exact arm" in made
    assert "&lt;tiny&gt;" in made
    assert "<tiny>" not in made
    assert made.count("<svg") == len(rl.FIGURES)
    assert "http" not in re.sub(r'xmlns="[^"]+"', "", made), "nothing is fetched"
    first, last = rl.row(report().runs[0]), rl.row(report().runs[1])
    assert (first["exact steps"], last["exact steps"]) == (0, 4)
    assert (first["max"], last["max"]) == (0.5, 0)
    assert first["s/step"] == 0.75


def test_a_stopped_exact_arm_is_never_called_exact() -> None:
    made = rl.page(report(not_exact="rollout and trainer logprobs differ at 1 of 8 valid tokens"))
    assert "verdict: the exact arm differs at step 4" in made
    assert "differ at 1 of 8" in made
    assert "exact at each" not in made
    only = report()
    assert rl.verdict(only.model_copy(update={"runs": only.runs[:1]})) == ("bad", "no exact arm")


@pytest.mark.parametrize(("what", "count"), [("train", 5), ("stale", 8)])
def test_plots_are_files_that_stand_alone(what: str, count: int) -> None:
    files = rl.plots(report(what))
    assert len(files) == count
    for name, text in files.items():
        assert name.endswith(".svg")
        root = ElementTree.fromstring(text)
        assert root.find(f"{SVG}style") is not None
        assert root.find(f".//{SVG}polyline") is not None


def points(svg: str) -> list[list[float]]:
    """y of every point of every curve."""
    root = ElementTree.fromstring(svg)
    return [
        [float(pair.split(",")[1]) for pair in polyline.attrib["points"].split()]
        for polyline in root.iter(f"{SVG}polyline")
    ]


def test_exact_zeros_have_a_line_of_their_own_below_the_smallest_value() -> None:
    (stock, exact) = points(curves.chart("k3", [Curve("a", [1e-5, 1e-3], 0), Curve("b", [0, 0], 1)], logarithmic=True))
    assert len(set(exact)) == 1
    assert exact[0] > stock[0] + curves.ZERO_GAP - 1 > stock[1], "svg counts from above"
    (alone,) = points(curves.chart("k3", [Curve("a", [1e-5, 1e-3], 0)], logarithmic=True))
    assert alone[0] > alone[1]


def test_what_is_not_finite_is_left_out_and_nothing_is_no_error() -> None:
    assert points(curves.chart("t", [Curve("a", [1.0, math.nan, 3.0], 0)])) != []
    assert len(points(curves.chart("t", [Curve("a", [1.0, math.nan, 3.0], 0)]))[0]) == 2
    assert points(curves.chart("t", [Curve("a", [], 0)], logarithmic=True)) == [[]]


def test_corrections_have_a_row_and_a_dot_each() -> None:
    rows = tuple(
        CorrectionRow(name=name, cosine=0.99, relative=r, bias=r / 2, noise=r / 4, k3=0, kept=1, truncated=0, seconds=1)
        for name, r in (("exact trainer", 0.0), ("tis", 1e-2))
    )
    found = Compared(rows=rows, mismatch=gap(2), truth=gap(0), notes=("a note",))
    whole = report().model_copy(update={"what": "corrections", "runs": (), "compared": found})
    made = rl.page(whole)
    assert "bits (8 tokens)" in made
    assert "2 / 8 differ" in made
    assert "a note" in made
    root = ElementTree.fromstring(rl.plots(whole)["corrections.svg"])
    assert len(list(root.iter(f"{SVG}circle"))) == 6
