"""Rows in a terminal: numbers and names stay whole, prose stands below, what has no room is named."""

from __future__ import annotations

import io

from rich.console import Console

from samebits.server.cli import tables

ROWS = (
    {
        "#": 0,
        "kind": "norm",
        "max": 0.0,
        "why": "a sentence that is longer than any column should be",
        "then": "x" * 30,
    },
    {"#": 1, "kind": "rotary", "max": 1.5e-7, "why": "", "then": "y"},
)


def printed(width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    tables.show(ROWS, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_prose_stands_below_its_table() -> None:
    shown, prose, left_out = tables.split(ROWS, 100)
    assert (shown, prose, left_out) == (["#", "kind", "max", "then"], ["why"], [])
    assert "0: a sentence" in printed(100)


def test_what_has_no_room_is_named_and_nothing_is_broken() -> None:
    text = printed(30)
    assert "with --json also: then" in text
    assert "1.5e-07" in text
    assert "rotary" in text


def test_zero_is_written_as_zero() -> None:
    assert tables.cell(0.0) == "0"
    assert tables.cell(None) == ""
