"""Rows in a terminal: numbers and names stay whole, text without room stands below, a figure without room is named."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

from samebits.server.cli import tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from samebits.tools.schema.results import Cell

ROWS: tuple[dict[str, Cell], ...] = (
    {
        "#": 0,
        "kind": "norm",
        "max": 0.0,
        "why": "a sentence that is longer than any column should be",
        "then": "x" * 30,
    },
    {"#": 1, "kind": "rotary", "max": 1.5e-7, "why": "", "then": "y"},
)


def printed(width: int, rows: Sequence[dict[str, Cell]] = ROWS) -> str:
    console = Console(file=io.StringIO(), width=width, soft_wrap=True)
    tables.show(rows, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_prose_stands_below_its_table() -> None:
    shown, prose, left_out = tables.split(ROWS, 100)
    assert (shown, prose, left_out) == (["#", "kind", "max", "then"], ["why"], [])
    assert "0: a sentence" in printed(100)


def test_text_without_room_is_folded_and_nothing_is_broken() -> None:
    text = printed(30)
    assert "  1: y" in text
    assert "1.5e-07" in text
    assert "rotary" in text


GAP: dict[str, Cell] = {
    "check": "rollout: chunked_prefill",
    "outcome": "leaves 0.123 of 0.456",
    "tokens": 123456,
    "nonzero": 48,
    "not finite": 0,
    "max": 0.00782918930053711,
    "mean": 0.0005235771338144938,
    "std": 0.0026451686269868017,
    "k3": 3.631552859857718e-06,
    "detail": "worst",
}


def test_a_gap_keeps_its_figures_in_80_columns() -> None:
    text = printed(80, (GAP, GAP | {"check": "weights", "detail": ""}))
    header = text.splitlines()[0].split()
    assert header == ["check", "tokens", "nonzero", "max", "mean", "std", "k3"]
    assert max(map(len, text.splitlines()[:3])) <= 80
    assert "rollout: chunked_prefill: leaves 0.123 of 0.456; worst" in text, "text is folded"
    assert "with --json also: not finite" in text
    assert printed(200, (GAP,)).splitlines()[0].split()[1:3] == ["outcome", "tokens"], "where there is room it stays"


def test_next_is_never_left_out() -> None:
    row: dict[str, Cell] = {"check": "c" * 38, "outcome": "fails", "detail": "d" * 30, "next": "n" * 30}
    assert f"c: next: {'n' * 30}" in printed(80, (row,))


def test_labels_alone_make_no_table() -> None:
    lines = printed(80, ({"what": "branch", "name": "x" * 50}, {"what": "new", "name": "y"})).splitlines()
    assert lines == [f"  branch: {'x' * 50}", "  new: y"]


def test_legs_that_were_not_run_are_one_row() -> None:
    red: dict[str, Cell] = {
        "leg": "builds",
        "outcome": "red",
        "mandatory": True,
        "seconds": 0.1,
        "detail": "no compiler",
    }
    why = "not run: stopped at the red leg builds"
    left: dict[str, Cell] = {"leg": "bits", "outcome": "not_run", "mandatory": True, "seconds": 0.0, "detail": why}
    text = printed(120, (red, left, left | {"leg": "rows", "mandatory": False}))
    assert text.count("stopped at the red leg builds") == 1
    assert "2 more legs not run" in text
    assert "not_run" not in text
    assert "no compiler" in text
    assert "more legs" not in printed(120, (red, left)), "one leg keeps its name"


def test_zero_is_written_as_zero() -> None:
    assert tables.cell(0.0) == "0"
    assert tables.cell(None) == ""
