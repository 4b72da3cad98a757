"""The gate on the real engine: one job that must be green, and slow ones on every family and on an engine at fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from samebits.tools.schema.artifacts.regression import AxisRow, Lock, RegressionReport, Throughput
from samebits.tools.schema.requests import GateRequest
from samebits.tools.sides.transformers.tiny import write_tiny
from samebits.tools.store import artifact

pytestmark = pytest.mark.vllm
STEADY = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "VLLM_CPU_ATTN_SPLIT_KV": "0", "OMP_NUM_THREADS": "1"}
ELSEWHERE = ("graph_buckets", "eager_graph", "ranks")
"""Axes of a GPU, or of several ranks."""
AXES = ("batch", "order", "chunked_prefill", "prefix_hit", "reload")


def gated(job: Path, request: dict[str, Any]) -> tuple[dict[str, Any], RegressionReport]:
    job.mkdir()
    asked = GateRequest.model_validate(request)
    (job / "request.json").write_text(asked.model_dump_json(), encoding="utf-8")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "samebits.tools.worker", str(job)], env=environment, check=True)
    outcome = json.loads((job / "result.json").read_text(encoding="utf-8"))
    assert outcome["state"] == "succeeded", outcome
    result: dict[str, Any] = outcome["result"]
    return result, artifact.read(job / result["ids"]["regression"], RegressionReport)


def experiment(folder: Path, env: dict[str, str]) -> dict[str, Any]:
    write_tiny(folder / "model", num_hidden_layers=2)
    rollout = {"model": str(folder / "model"), "eager": True, "max_model_len": 512, "env": env}
    return {
        "device": "cpu",
        "rollout": rollout,
        "workload": {"prompts": 8, "prompt_tokens": (3, 200), "new_tokens": 8},
        "gate": {"min_tokens": 32},
    }


@pytest.fixture(scope="module")
def green(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], RegressionReport]:
    folder = tmp_path_factory.mktemp("gate")
    return gated(folder / "job", {"experiment": experiment(folder, STEADY), "axes": AXES})


def axis(report: RegressionReport, name: str) -> AxisRow:
    return next(one for one in report.axes if one.name == name)


def test_a_steady_engine_is_green_on_every_axis(green: tuple[dict[str, Any], RegressionReport]) -> None:
    result, report = green
    assert {one.name: one.outcome.status for one in report.axes} == dict.fromkeys(AXES, "exact"), report.axes
    assert result["verdict"] == "equal"


def test_every_way_took_effect(green: tuple[dict[str, Any], RegressionReport]) -> None:
    _, report = green
    # With eight sequences, eight at a time is all of them.
    assert [one.skipped for one in report.axes if one.name != "batch"] == [()] * 4
    assert len(axis(report, "batch").compared) == 6
    assert len(axis(report, "batch").skipped) == 1
    assert [way.words.split("against ")[1] for way in axis(report, "chunked_prefill").compared][:3] == [
        f"chunks of {size} tokens" for size in (127, 128, 129)
    ]


def test_each_control_disturbed_what_its_axis_varies(green: tuple[dict[str, Any], RegressionReport]) -> None:
    _, report = green
    said = {one.name: one.control.disturbed for one in report.axes if one.control is not None}
    assert "KV split" in said["batch"]
    assert "old weights left in the cache" in said["prefix_hit"]
    assert "not pushed with the others" in said["reload"]
    assert "first row behind a chunk of 127" in said["chunked_prefill"]
    assert all(one.control is not None and one.control.stats.nonzero > 0 for one in report.axes)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_moe"])
def test_the_fast_gate_is_green_with_every_axis_required_that_a_cpu_has(family: str, tmp_path: Path) -> None:
    from samebits.tools.gate.regression.verb import names

    here = [name for name in names() if name not in ELSEWHERE]
    result, report = gated(tmp_path / "job", {"experiment": {}, "tiny": family, "require": here})
    found = {one.name: one.outcome.status for one in report.axes}
    assert found == dict.fromkeys(here, "exact") | dict.fromkeys(ELSEWHERE, "not_run"), report.verdict
    lock = Lock.model_validate_json((tmp_path / "job" / result["ids"]["lock"]).read_text(encoding="utf-8"))
    assert (set(lock.axes), set(lock.not_proved)) == (set(here), set(ELSEWHERE))
    assert set(lock.proved) == {"rollout", "trainer"}


@pytest.mark.slow
def test_throughput_is_measured_against_an_engine_without_samebits(tmp_path: Path) -> None:
    _, report = gated(tmp_path / "job", {"experiment": {}, "tiny": "qwen3", "axes": ("trainer_repeat", "throughput")})
    assert report.throughput is not None
    assert isinstance(report.throughput, Throughput)
    assert len(report.throughput.own.runs) == len(report.throughput.stock.runs) == 5
    assert min(*report.throughput.own.runs, *report.throughput.stock.runs) > 0


@pytest.mark.slow
def test_an_engine_that_splits_the_keys_is_red_on_batch(tmp_path: Path) -> None:
    split = STEADY | {"VLLM_CPU_ATTN_SPLIT_KV": "1", "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
    result, report = gated(tmp_path / "job", {"experiment": experiment(tmp_path, split), "axes": ("repeat", "batch")})
    assert axis(report, "batch").outcome.status == "differs"
    assert (report.verdict.kind, result["verdict"]) == ("red", "differs")
    assert "--against batch" in result["next"]
