"""Pieces of a throughput run: what is measured in which order, what is left when time is short, how pieces merge."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def throughput(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("throughput")


class Engine:
    """Answers at once, and notes what it was asked; not an engine."""

    def __init__(self, name: str, asked: list[str]) -> None:
        self.name, self.asked = name, asked

    def ask(self, _do: str, prompts: dict[str, int], keep: bool, **size: int) -> dict[str, float]:
        self.asked.append(f"{self.name} {size['concurrency']} {prompts['seed']} {prompts['count']} {keep}")
        steps = {"median_step_ms": 2.0, "longest_step_ms": 9.0 + prompts["seed"] % 10}
        return {"seconds": 5.0, "tokens": 1000.0 if self.name == "default" else 900.0} | steps


def options(**changed: Any) -> argparse.Namespace:
    usual = {"shape": "tiny", "concurrency": [8], "rounds": 3, "slices": 1, "warm": 1, "once": [], "seconds": 10.0}
    more = {"dummy": False, "score_rounds": 99, "new_tokens": 4, "prompt": [3, 9]}
    return argparse.Namespace(**(usual | more | changed))


def test_arms_take_turns_over_the_same_prompts(throughput: Any, tmp_path: Path) -> None:
    asked: list[str] = []
    engines = [Engine(name, asked) for name in ("default", "samebits", "batch_invariant")]
    result = throughput.Result.of(tmp_path / "x.json")
    result.put(arms="all")
    throughput.measure(engines, options(once=["batch_invariant"]), result, time.monotonic() + 9999)
    order = [line.split()[0] for line in asked]
    assert order[3:6] == ["default", "samebits", "batch_invariant"]
    assert order[6:] == ["samebits", "default", "default", "samebits"]
    assert [line.split(maxsplit=2)[2] for line in asked[3:6]] == ["8010 18 False", "8010 18 True", "8010 18 False"]
    assert len({line.split()[2] for line in asked[3:]}) == 3, "new prompts in every round"
    held = json.loads((tmp_path / "x.json").read_text())
    assert held["summary"]["8"]["samebits"] == {"median": 180.0, "range": [180.0, 180.0], "rounds": 3, "ratio": 0.9}
    assert held["summary"]["8"]["batch_invariant"]["rounds"] == 1


def test_a_round_is_cut_into_slices_that_the_arms_take_in_turn(throughput: Any, tmp_path: Path) -> None:
    asked: list[str] = []
    result = throughput.Result.of(tmp_path / "x.json")
    result.put(arms="all")
    engines = [Engine(name, asked) for name in ("default", "samebits")]
    throughput.measure(engines, options(slices=5, rounds=1, seconds=15.0), result, time.monotonic() + 9999)
    order = [line.split()[0] for line in asked[2:]]
    assert order == ["default", "samebits", "samebits", "default", "default", "samebits"], "3 waves: 3 slices of the 5"
    assert [line.split()[2] for line in asked[2:]] == ["8010", "8010", "8011", "8011", "8012", "8012"]
    assert {line.split()[3] for line in asked[2:]} == {"9"}, "not fewer than are in flight"
    ours, theirs = json.loads((tmp_path / "x.json").read_text())["rows"][::-1]
    assert (theirs["tokens"], theirs["seconds"], ours["tokens"]) == (3000.0, 15.0, 2700.0)
    assert ours["slices"] == [180.0] * 3
    assert ours["longest_step_ms"] == 11.0
    assert ours["median_step_ms"] == 2.0


def test_what_does_not_fit_is_left_and_said(throughput: Any, tmp_path: Path) -> None:
    asked: list[str] = []
    result = throughput.Result.of(tmp_path / "x.json")
    result.put(arms="all")
    throughput.measure([Engine("default", asked)], options(concurrency=[8, 64]), result, time.monotonic() - 1)
    assert asked == []
    said = json.loads((tmp_path / "x.json").read_text())["pieces"][0]["not_run"]
    assert said == "no time was left: concurrency 8; concurrency 64"


def test_pieces_merge_and_a_ratio_is_taken_within_its_piece(throughput: Any, tmp_path: Path) -> None:
    def piece(*rows: tuple[str, float]) -> dict[str, Any]:
        result = throughput.Result.of(tmp_path / "x.json")
        result.put(arms=[arm for arm, _ in rows])
        for arm, rate in rows:
            result.row({"arm": arm, "concurrency": 8, "tokens_per_s": rate})
        held: dict[str, Any] = json.loads((tmp_path / "x.json").read_text())
        return held

    piece(("default", 100.0), ("samebits", 110.0))
    held = piece(("default", 50.0), ("batch_invariant", 40.0))
    assert len(held["pieces"]) == 2
    assert held["summary"]["8"]["samebits"]["ratio"] == 1.1
    assert held["summary"]["8"]["batch_invariant"]["ratio"] == 0.8, "not 40 over the median of both default runs"


def test_a_child_and_its_own_child_are_pinned_with_all_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    engines = importlib.import_module("engines")
    code = (
        "import threading, time, subprocess, sys; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    inner = f"{code}; print(1, flush=True); time.sleep(60)"
    outer = f"{code}; subprocess.run([sys.executable, '-c', {inner!r}])"
    one = {min(os.sched_getaffinity(0))}
    with subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            whole = psutil.Process(process.pid)
            (child,) = whole.children()
            engines.Engine("x", process, None, None).pin(one)
            ids = [thread.id for part in (whole, child) for thread in part.threads()]
            assert len(ids) >= 4
            assert all(os.sched_getaffinity(thread) == one for thread in ids)
        finally:
            for part in (child, whole):
                part.kill()
