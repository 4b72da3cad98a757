"""A key in the environment is in no file that a verb writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from samebits.tools.gate.regression import write
from samebits.tools.job.job import Job
from samebits.tools.measure.verb import run_measure
from samebits.tools.schema.experiment import Rollout
from samebits.tools.schema.requests import MeasureRequest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("sides_here")
KEYS = ("VLLM_API_KEY", "VLLM_HF_TOKEN", "VLLM_S3_SECRET_ACCESS_KEY")
SEEN = "VLLM_USE_SOMETHING"
"""A variable that may change bits."""


def files_with(folder: Path, text: str) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.setenv(name, "planted-in-the-environment")
    monkeypatch.setenv(SEEN, "planted-and-seen")


@pytest.mark.usefixtures("planted")
def test_no_file_of_a_gate_holds_a_key(gated: Callable[..., Any], tmp_path: Path) -> None:
    own = {"VLLM_API_KEY": "planted-in-the-file", "VLLM_OF_THE_FILE": "seen-in-the-file"}
    result, _ = gated(rollout={"env": own}, axes=("repeat", "trainer_repeat"))
    assert result.exit_code == 0
    assert files_with(tmp_path, "planted-in") == set()
    # The control: what may change bits is in the lock, the report and its page.
    assert files_with(tmp_path, "planted-and-seen") >= {"samebits.lock", "manifest.json", "report.html"}
    assert "samebits.lock" in files_with(tmp_path, "seen-in-the-file")


def test_of_the_engines_arguments_the_lock_has_the_numbers_and_no_token() -> None:
    rollout = Rollout(engine={"max_num_batched_tokens": 8192, "hf_token": "planted", "block_size": 32})
    assert write._settings(rollout, ("engine",)) == {"engine": "{'max_num_batched_tokens': 8192, 'block_size': 32}"}


@pytest.mark.usefixtures("planted")
def test_no_file_of_a_measurement_holds_a_key(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    side = "python:steady_side:factory"
    experiment = {
        "device": "cpu",
        "rollout": {"side": side, "model": str(model), "dtype": "float32"},
        "trainer": {"side": side, "dtype": "float32", "layout": "padded", "logprob": "log_softmax"},
        "workload": {"prompts": 4, "prompt_tokens": (2, 9), "new_tokens": 4},
    }
    run_measure(MeasureRequest.model_validate({"experiment": experiment}), Job(tmp_path))
    assert files_with(tmp_path, "planted-in") == set()
    assert "manifest.json" in files_with(tmp_path, "planted-and-seen")
