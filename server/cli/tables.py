"""A result's rows in a terminal: what fits as columns, and what is prose below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from samebits.tools.schema.results import Cell

PROSE = 40
"""A column with a longer cell is text to read, not to compare: it stands below the table, row by row."""
GAP = 2


def cell(value: Cell) -> str:
    """As short as it can be said."""
    if isinstance(value, float):
        return "0" if value == 0 else f"{value:.3g}"
    return "" if value is None else str(value)


def split(rows: Sequence[dict[str, Cell]], width: int) -> tuple[list[str], list[str], list[str]]:
    """Names of the columns that are shown, of the prose below, and of those there is no room for."""
    shown: list[str] = []
    prose: list[str] = []
    left_out: list[str] = []
    used = 0
    for name in rows[0]:
        longest = max(len(name), *(len(cell(row.get(name))) for row in rows))
        if longest > PROSE:
            prose.append(name)
        elif used + longest > width:
            left_out.append(name)
        else:
            shown.append(name)
            used += longest + GAP
    return shown, prose, left_out


def show(rows: Sequence[dict[str, Cell]], console: Console) -> None:
    """Print the rows; nothing is broken inside a number or a name."""
    shown, prose, left_out = split(rows, console.width)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for name in shown:
        table.add_column(name, no_wrap=True, overflow="ignore")
    for row in rows:
        table.add_row(*(cell(row.get(name)) for name in shown))
    if shown:
        console.print(table)
    for number, row in enumerate(rows):
        said = [cell(row.get(name)) for name in prose]
        if any(said):
            label = cell(row.get(shown[0])) if shown else str(number)
            console.print(f"  {label}: " + "; ".join(filter(None, said)), markup=False, highlight=False)
    if left_out:
        console.print(f"with --json also: {', '.join(left_out)}", style="dim")
