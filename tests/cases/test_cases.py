"""Every case gets its verdict from samebits' own tools, and loses it without the fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_form import Case, all_cases
from case_table import table

CASES = all_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_case_gets_its_verdict(case: Case) -> None:
    assert case.judge() == case.verdict


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_without_the_fault_the_verdict_is_another_one(case: Case) -> None:
    assert case.control_verdict != case.verdict
    assert case.control() == case.control_verdict


def test_names_are_used_once_and_there_are_enough() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 25


def test_the_table_is_in_step_with_the_cases() -> None:
    text = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    assert table(CASES) in text, "run: python tests/cases/case_table.py"
