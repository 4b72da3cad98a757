"""Writes the table in README.md: `python tests/cases/case_table.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from case_form import Case

START = "| case | area | reported in | what was seen | verdict | negative control | its verdict |"


def table(cases: list[Case]) -> str:
    """One row per case."""
    rows = [START, "|---|---|---|---|---|---|---|"]
    rows += [
        f"| {c.name} | {c.area} | {c.source} | {c.symptom} | {c.verdict} | {c.without} | {c.control_verdict} |"
        for c in cases
    ]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    from case_form import all_cases

    path = Path(__file__).parent / "README.md"
    head = path.read_text(encoding="utf-8").partition(START)[0]
    path.write_text(head + table(all_cases()), encoding="utf-8")
