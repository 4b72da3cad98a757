"""The tuner of linear, as far as it goes without a GPU: its file, and what it tries."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from samebits.kernels.ops.linear import cublaslt, dispatch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(cublaslt, "version", lambda: dispatch.table()["cublaslt"])
    return importlib.import_module("tune_linear")


def test_shapes_that_are_not_tuned_stay_as_they_stand(tuner: Any, tmp_path: Path) -> None:
    table = tuner.start_of(dispatch.TABLE)
    assert tuner.text_of(table) == dispatch.TABLE.read_text(encoding="utf-8")
    assert tuner.start_of(tmp_path / "new.json")["shapes"] == {}


def test_a_table_of_another_cublaslt_is_not_mixed_with_this_one(tuner: Any, tmp_path: Path) -> None:
    other = tmp_path / "table.json"
    other.write_text(json.dumps({"cublaslt": 1, "shapes": {}}), encoding="utf-8")
    with pytest.raises(SystemExit, match="tune into a new file"):
        tuner.start_of(other)


def test_the_fastest_few_and_the_favourite_are_timed_again(tuner: Any) -> None:
    found = {"cublaslt 0": 9.0, "cublaslt 1": 5.0, "a": "other bits", "b": 4.0, "c": 6.0, "d": 7.0, "e": 8.0}
    assert tuner.finalists(found) == ["b", "cublaslt 1", "c", "d", "cublaslt 0"]
    assert tuner.finalists({"cublaslt 0": "other bits", "b": 4.0}) == ["b"]
    with pytest.raises(AssertionError):
        tuner.finalists({"b": "other bits"})


def test_a_pin_must_be_worth_it(tuner: Any) -> None:
    assert tuner.winner({"cublaslt 0": 100.0, "cublaslt 3": 99.0}) == "cublaslt 0"
    assert tuner.winner({"cublaslt 0": 100.0, "cublaslt 3": 97.0}) == "cublaslt 3"
    assert tuner.winner({"cublaslt 0": 100.0, "['triton', 8]": 99.0}) == "['triton', 8]"
    assert tuner.winner({"cublaslt 3": 99.0}) == "cublaslt 3"
