"""A result's rows in a terminal: what fits as columns, and what is prose below."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, cast

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from samebits.tools.schema.results import Cell

PROSE = 40
"""A column with a longer cell is text to read, not to compare: it stands below the table, row by row."""
GAP = 2
HEADLINE = ("max", "k3", "nonzero", "mean", "std", "tokens")
"""Figures of a gap: other columns make room for them."""


def cell(value: Cell) -> str:
    """As short as it can be said."""
    if isinstance(value, float):
        return "0" if value == 0 else f"{value:.3g}"
    return "" if value is None else str(value)


def split(rows: Sequence[dict[str, Cell]], width: int) -> tuple[list[str], list[str], list[str]]:
    """Names of the columns that are shown, of the prose below, and of those there is no room for: figures that are not
    a gap's own. Text without room is prose.
    """
    names = list(rows[0])
    longest = {name: max(len(name), *(len(cell(row.get(name))) for row in rows)) for name in names}
    first = [name for name in (names[0], *HEADLINE) if name in longest and longest[name] <= PROSE]
    gap = gap_of(rows, width)
    kept: set[str] = set()
    left = width + gap
    for name in dict.fromkeys((*first, *names)):
        if longest[name] <= PROSE and longest[name] + gap <= left:
            kept.add(name)
            left -= longest[name] + gap
    out = [name for name in names if name not in kept]
    prose = [name for name in out if longest[name] > PROSE or any(isinstance(row.get(name), str) for row in rows)]
    return [name for name in names if name in kept], prose, [name for name in out if name not in prose]


def gap_of(rows: Sequence[dict[str, Cell]], width: int) -> int:
    """Blanks between two columns: as many as leave room for a gap's figures."""
    needed = [name for name in rows[0] if name in (next(iter(rows[0])), *HEADLINE)]
    used = sum(max(len(name), *(len(cell(row.get(name))) for row in rows)) + GAP for name in needed)
    return GAP if used - GAP <= width else 1


def gathered(rows: Sequence[dict[str, Cell]]) -> list[dict[str, Cell]]:
    """The rows, legs of a gate that were not run for one reason as one."""
    found: list[dict[str, Cell]] = []
    for reason, group in itertools.groupby(rows, lambda row: row.get("detail") if _is_left(row) else None):
        legs = list(group)
        if reason is None or len(legs) == 1:
            found += legs
        else:
            detail = str(reason).removeprefix("not run: ")
            one = dict.fromkeys(legs[0], None) | {"leg": f"{len(legs)} more legs not run", "detail": detail}
            found.append(cast("dict[str, Cell]", one))
    return found


def _is_left(row: dict[str, Cell]) -> bool:
    return "leg" in row and row.get("outcome") == "not_run"


def show(rows: Sequence[dict[str, Cell]], console: Console) -> None:
    """Print the rows; nothing is broken inside a number or a name."""
    rows = gathered(rows)
    shown, prose, left_out = split(rows, console.width)
    table = Table(box=None, pad_edge=False, padding=(0, gap_of(rows, console.width), 0, 0))
    for name in shown:
        table.add_column(name, no_wrap=True, overflow="ignore")
    for row in rows:
        table.add_row(*(cell(row.get(name)) for name in shown))
    if shown and not (prose and len(shown) == 1):  # the labels alone stand before the prose
        console.print(table)
    for number, row in enumerate(rows):
        said = [_said(name, cell(row.get(name))) for name in prose]
        if any(said):
            label = cell(row.get(shown[0])) if shown else str(number)
            console.print(f"  {label}: " + "; ".join(filter(None, said)), markup=False, highlight=False)
    if left_out:
        console.print(f"with --json also: {', '.join(left_out)}", style="dim")


def _said(name: str, text: str) -> str:
    return f"next: {text}" if text and name == "next" else text
