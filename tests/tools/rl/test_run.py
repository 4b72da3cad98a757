"""The whole loop on the real engine: exact, killed and resumed, with planted faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from samebits.tools.schema.artifacts.rl import RlReport
from samebits.tools.schema.experiment import Experiment
from samebits.tools.schema.requests import RlRequest
from samebits.tools.schema.results import OUTCOME, Succeeded
from samebits.tools.store import artifact

pytestmark = pytest.mark.vllm
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small, yet inside what the engine's attention takes."""
    from samebits.tools.sides.transformers.tiny import write_tiny

    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "head_dim": 32, "vocab_size": 64}
    return write_tiny(tmp_path_factory.mktemp("rl") / "model", **sizes, max_position_embeddings=128)


def experiment(model: str = "", **rl: Any) -> Experiment:
    return Experiment.model_validate(
        {
            "device": "cpu",
            "rollout": {
                "model": model,
                "eager": True,
                "max_model_len": 64,
                "engine": {"max_num_batched_tokens": 4096},
            },
            "trainer": {"layout": "packed", "micro_batch": 8, "logprob": "log_softmax"},
            "rl": {"digits": (2, 3), "prompts": 4, "group": 16, "rate": 1e-3, "warmup_steps": 0, **rl},
        }
    )


def start(folder: Path, request: RlRequest) -> subprocess.Popen[bytes]:
    """The worker on a job folder, in a process group of its own, as every way to run a job starts it."""
    folder.mkdir()
    (folder / "request.json").write_text(request.model_dump_json())
    with (folder / "log.txt").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "samebits.tools.worker", str(folder)],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def carry_out(folder: Path, request: RlRequest) -> Any:
    assert start(folder, request).wait(1100) == 0
    return OUTCOME.validate_json((folder / "result.json").read_text())


def report_of(folder: Path) -> RlReport:
    return artifact.read(folder / "rl", RlReport)


def test_two_steps_of_the_exact_arm_are_exact_from_the_request_to_the_report(tmp_path: Path, model: Path) -> None:
    asked = experiment(str(model), steps=2, arms=("exact",))
    outcome = carry_out(tmp_path / "job", RlRequest(experiment=asked))
    assert isinstance(outcome, Succeeded), outcome
    assert outcome.result.verdict == "equal"
    (run,) = report_of(tmp_path / "job").runs
    assert [line.gap.exact for line in run.steps] == [True, True]
    assert [line.version for line in run.steps] == [0, 1]
    assert all(line.mean_weight == line.kept == 1.0 and line.gradient_norm > 0 for line in run.steps)
    assert run.steps[0].digest != run.steps[1].digest
    page = (tmp_path / "job/rl/report.html").read_text()
    assert "exact at each of 2 steps" in page
    assert {path.suffix for path in (tmp_path / "job/rl").iterdir()} >= {".svg", ".html", ".jsonl", ".json"}


@pytest.mark.slow
def test_the_stock_arm_differs_where_the_exact_one_does_not(tmp_path: Path) -> None:
    asked = experiment(steps=3, warmup_steps=3, lag=1, correction="is")
    outcome = carry_out(tmp_path / "job", RlRequest(experiment=asked))
    assert isinstance(outcome, Succeeded), outcome
    stock, exact = report_of(tmp_path / "job").runs
    assert (stock.arm, exact.arm) == ("stock", "exact")
    assert stock.exact_steps == 0
    assert exact.exact_steps == 3
    assert [line.version for line in exact.steps] == [0, 0, 1], "one update behind"
    assert exact.steps[0].staleness.exact, "its own version: no update lies between"
    assert exact.steps[0].mean_weight == 1.0
    assert not exact.steps[2].staleness.exact
    assert exact.steps[2].mean_weight != 1.0


@pytest.mark.slow
def test_a_run_killed_in_the_middle_goes_on_bit_for_bit(tmp_path: Path, model: Path) -> None:
    asked = RlRequest(
        experiment=experiment(str(model), steps=6, arms=("exact",), lag=1, correction="tis", checkpoint_every=2)
    )
    whole = carry_out(tmp_path / "whole", asked)
    assert isinstance(whole, Succeeded), whole
    worker = start(tmp_path / "killed", asked)
    metrics = tmp_path / "killed/exact/lag-1/metrics.jsonl"
    until = time.monotonic() + 1000
    while not metrics.is_file() or metrics.read_text().count("\n") < 3:
        assert worker.poll() is None, "it ended before it was killed"
        assert time.monotonic() < until
        time.sleep(0.02)
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    assert not (tmp_path / "killed/result.json").exists()
    resumed = carry_out(tmp_path / "resumed", asked.model_copy(update={"resume": str(tmp_path / "killed")}))
    assert isinstance(resumed, Succeeded), resumed
    (first,), (again,) = report_of(tmp_path / "whole").runs, report_of(tmp_path / "resumed").runs
    assert again.resumed_at in (2, 4)
    assert [line.digest for line in first.steps] == [line.digest for line in again.steps]
    assert [line.gradient_norm for line in first.steps] == [line.gradient_norm for line in again.steps]
    assert [line.reward for line in first.steps] == [line.reward for line in again.steps]
    assert len({line.digest for line in first.steps}) == 6, "the control: digests tell steps apart"


@pytest.mark.slow
def test_planted_faults_are_told_apart_and_stop_the_loop_before_an_update(tmp_path: Path, model: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "planted.py"), str(model), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
        env=os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["plain"] is True
    assert found["head"] is True
    assert "did not arrive in the engine: 1 of" in found["lost, read back"]
    assert "layers.1.mlp.down_proj" in found["lost, read back"]
    first, second = found["lost, not read back"]
    assert first.startswith("NotExact") or second.startswith("NotExact"), "the guard sees it at the next rollout"
    assert found["whole again"] == ""
    for name, words in {
        "nan": "1 of",
        "no valid token": "no valid token: nothing was compared",
        "long": "the trainer side's model takes 128",
    }.items():
        said, untouched = found[name]
        assert said.startswith("UserError"), (name, said)
        assert words in said
        assert untouched, name


@pytest.mark.slow
def test_corrections_of_a_mixture_of_experts_are_measured_against_its_exact_gradient(tmp_path: Path) -> None:
    asked = experiment(family="qwen3_moe", warmup_steps=3, batches=2, top=8)
    outcome = carry_out(tmp_path / "job", RlRequest(experiment=asked, what="corrections"))
    assert isinstance(outcome, Succeeded), outcome
    found = report_of(tmp_path / "job").compared
    assert found is not None
    assert found.truth.exact
    assert found.mismatch.nonzero > 0
    rows = {row.name: row for row in found.rows}
    assert set(rows) >= {"none", "tis", "mis", "flash", "centering", "r3", "exact trainer"}
    again = rows.pop("exact trainer")
    assert (again.relative, again.bias) == (0, 0)
    assert again.cosine == pytest.approx(1, abs=1e-12)
    assert all(0 < row.relative < 1 and row.cosine > 0.5 for row in rows.values())
    assert any("the exact trainer's own choice is the same everywhere" in note for note in found.notes)
