"""The tuner of linear, as far as it goes without a GPU: its file, and what it tries."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from samebits.kernels.ops.linear import cublaslt, dispatch, inputs
from samebits.kernels.ops.linear.contract import contract
from samebits.kernels.ops.linear.segments import segments

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


def test_a_favourite_of_the_batched_products_is_a_favourite_too(tuner: Any) -> None:
    assert tuner.winner({"batched 0": 100.0, "batched 3": 99.0}) == "batched 0"
    assert tuner.winner({"batched 0": 100.0, "batched 3": 97.0}) == "batched 3"
    found = {"batched 0": 9.0, "a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    assert tuner.finalists(found) == ["a", "b", "c", "d", "batched 0"]


def test_rows_that_are_tuned_take_the_place_of_the_old_ones_and_the_largest_holds_for_all_above(tuner: Any) -> None:
    old = [[1, ["a"]], [16, ["b"]], [None, ["c"]]]
    assert tuner.merged(old, {16: ["x"]}) == [[1, ["a"]], [16, ["x"]], [None, ["c"]]]
    assert tuner.merged(old, {8: ["x"], 8192: ["y"]}) == [[1, ["a"]], [8, ["x"]], [16, ["b"]], [None, ["y"]]]
    assert tuner.merged([], {1: ["x"], 8192: ["y"]}) == [[1, ["x"]], [None, ["y"]]]


def test_what_is_tried_are_entries_of_the_kind_that_k_asks_for(tuner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[cublaslt.Problem] = []

    def choices(problem: cublaslt.Problem, most: int) -> list[str]:
        asked.append(problem)
        return ["00", "01", "02"]

    monkeypatch.setattr(cublaslt, "choices", choices)
    monkeypatch.setattr(cublaslt, "usable", lambda problem, algo: algo != "02")
    monkeypatch.setattr(dispatch, "_is_hopper", lambda device: True)
    for shape in [*inputs.SHAPES, {"n": 512, "k": 11008}, {"n": 513, "k": 12288}]:
        N, K = shape["n"], shape["k"]
        for M in tuner.EDGES:
            asked.clear()
            ran = {str(tuner.form(entry, N, K)) for entry in tuner.entries(M, N, K)}
            found = tuner.options_of(M, N, K, ran)
            assert found
            ways = {dispatch.parse(entry).way for entry in found.values()}
            assert ("chain" in ways) == (segments(K) == 1)
            assert ways <= {"chain", "hopper", "walk tma"} or "chain" not in ways
            assert all(dispatch.fits(dispatch.parse(entry), M, N, K, 0) for entry in found.values())
            assert [problem.segments for problem in asked] in ([], [segments(K)])
    # Where segments differ in length no batch of products has the bits.
    assert "batched 0" in tuner.options_of(256, 512, 12288, set())
    assert "batched 0" not in tuner.options_of(256, 512, 11008, set())
    assert list(tuner.options_of(256, 512, 12288, set())) == ["batched 0", "batched 1"], "what does not run is left out"


def test_single_rows_are_tuned_by_shape(tuner: Any) -> None:
    assert tuner.wanted_of(["2048x8192:64", "128x4096:512", "2048x8192:16"]) == {
        "2048x8192": (16, 64),
        "128x4096": (512,),
    }
    with pytest.raises(SystemExit, match="2048x8192:17"):
        tuner.wanted_of(["2048x8192:17"])


def test_what_does_not_run_or_hangs_while_it_is_compiled_is_left_out(
    tuner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Result:
        def __init__(self, entry: list[Any]) -> None:
            self.entry = entry

        def get(self, seconds: float) -> bool:
            if self.entry[0] == "join":
                raise multiprocessing.TimeoutError
            return self.entry[0] == "split"

    class Pool:
        def __init__(self, workers: int) -> None: ...
        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *args: object) -> None: ...
        def apply_async(self, function: Any, task: tuple[Any, ...]) -> Result:
            return Result(task[0])

    monkeypatch.setattr(tuner.multiprocessing, "get_context", lambda kind: types.SimpleNamespace(Pool=Pool))
    ran = tuner.compile_all({"512x12288": (1, 8192)}, 2, 10.0)
    assert ran
    assert all("split" in name for name in ran)


def test_what_has_other_bits_is_never_chosen_however_fast(tuner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits are compared as on a GPU; the times are made up."""
    entry = ["join", 16, 16, 512, 2, 3, 0]
    wrong = ["walk", 16, 16, 256, 2, 3, 0]

    def launch(choice: dispatch.Choice, x: Any, weight: Any, bias: Any) -> Any:
        return contract(x, weight) + (choice.way == "walk")

    monkeypatch.setattr(tuner, "launch", launch)
    monkeypatch.setattr(tuner, "measure", lambda calls, best: 9.0)
    x, weights = torch.randn(2, 8448).bfloat16(), torch.randn(1, 8, 8448).bfloat16()
    options = {str(entry): entry, str(wrong): wrong, "nonsense": ["join", 1]}
    parse = dispatch.parse
    monkeypatch.setattr(tuner, "parse", lambda entry: parse(entry) if len(entry) > 2 else None)
    found = tuner.first_times(options, x, weights, range(1), contract(x, weights[0]))
    assert found[str(entry)] == 9.0
    assert found[str(wrong)] == "other bits"
    assert "AttributeError" in found["nonsense"]
    assert tuner.finalists(found) == [str(entry)]
