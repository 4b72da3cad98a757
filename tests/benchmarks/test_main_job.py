"""The main job's benchmark keeps what it has: a verb that fails or runs over its time costs the others nothing."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def main_job(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("main_job")


def runs(main_job: Any, tmp_path: Path, left: float) -> Any:
    return main_job.Runs(tmp_path, tmp_path, dict(os.environ), 600.0, time.monotonic() + left, {"shape": "tiny"})


def test_a_process_over_its_time_is_stopped_and_one_within_it_is_not(main_job: Any) -> None:
    late = subprocess.Popen(["sleep", "60"])
    assert main_job._late(late, 0.2)
    assert late.returncode is not None, "it still runs"
    quick = subprocess.Popen(["true"])
    assert not main_job._late(quick, 300.0)


def test_a_verb_that_fails_is_a_row_with_its_words_and_the_next_one_runs(main_job: Any, tmp_path: Path) -> None:
    asked = runs(main_job, tmp_path, 6000.0)
    asked.run("measure", ["measure", "-c", str(tmp_path / "gone.toml")])
    asked.run("diff", ["diff", "-c", str(tmp_path / "gone.toml")])
    held = json.loads((tmp_path / "main_job.json").read_text())
    assert held["shape"] == "tiny"
    assert [(row["name"], row["exit"]) for row in held["verbs"]] == [("measure", 2), ("diff", 2)]
    assert all("gone.toml" in row["said"] for row in held["verbs"])


def test_what_no_time_is_left_for_is_said(main_job: Any, tmp_path: Path) -> None:
    asked = runs(main_job, tmp_path, main_job.GRACE_S)
    asked.run("measure", ["measure"])
    (row,) = json.loads((tmp_path / "main_job.json").read_text())["verbs"]
    assert (row["exit"], row["said"]) == (None, "not run: no time was left")


def test_minimize_takes_the_first_operator_of_each_kind(main_job: Any, tmp_path: Path) -> None:
    assert main_job.first_of_each_kind(tmp_path) == {}
    work = [{"kind": kind} for kind in ("norm", "linear", "norm", "rotary", "linear")]
    (tmp_path / "manifest.json").write_text(json.dumps({"work": work}))
    assert main_job.first_of_each_kind(tmp_path) == {"norm": 0, "linear": 1, "rotary": 3}
