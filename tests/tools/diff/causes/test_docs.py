"""docs/causes.md names every kind and every word."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from samebits.tools.diff.causes.name import KINDS
from samebits.tools.schema.artifacts.divergence import Cause

TEXT = (Path(__file__).parents[4] / "docs" / "causes.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("word", get_args(Cause.model_fields["name"].annotation))
def test_every_word_is_explained(word: str) -> None:
    assert f"| `{word}` |" in TEXT


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_row(kind: str) -> None:
    assert f"\n| {kind} | " in TEXT
