"""The arms of the row operators compute the same thing: else a ratio of their times would mean nothing."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def times_rows() -> dict[str, Any]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        found = runpy.run_path(str(ROOT / "benchmarks" / "times_rows.py"))
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    assert found["load_vllm"](), "vLLM's custom operators must be here"
    return found


CASES = ("2048 residual", "128", "6144", "16 + 8 heads of 128", "32 + 8 heads of 128, normed", "151936")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tokens", [1, 5])
def test_every_arm_computes_the_same(times_rows: dict[str, Any], case: str, tokens: int) -> None:
    arms = times_rows["CASES"][case][1](tokens, "cpu")
    assert any(arms.theirs.values())
    times_rows["require_same"](arms)


def test_an_arm_that_computes_something_else_is_refused(times_rows: dict[str, Any]) -> None:
    make = times_rows["CASES"]["6144"][1]
    mixed = times_rows["Arms"](make(5, "cpu").ours, make(5, "cpu").theirs, 0)
    with pytest.raises(RuntimeError, match="silu_and_mul: its result is"):
        times_rows["require_same"](mixed)


def test_the_bytes_of_a_call_are_those_of_its_tensors(times_rows: dict[str, Any]) -> None:
    x = torch.empty(5, 2048, dtype=torch.bfloat16)
    arms = times_rows["CASES"]["2048 residual"][1](5, "cpu")
    assert arms.moved == 4 * x.nbytes + 2 * 2048  # x and residual read, the norm and the sum written, the weight
