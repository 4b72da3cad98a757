"""Steps 1 and 2 of a diff come first: what disturbs the check, other weights and other meanings stop it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest
import torch

from samebits.tools.capture.recorder import Recorder
from samebits.tools.diff.verb import run_diff
from samebits.tools.job.job import Job
from samebits.tools.schema.artifacts.divergence import DivergenceManifest, Incomparable
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import DiffRequest
from samebits.tools.sides import rollout_store
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samebits.tools.schema.results import Result
    from samebits.tools.sides.protocol import RolloutData

pytestmark = pytest.mark.usefixtures("sides_here", "planted")


def diffed(
    model: Path, folder: Path, faults: str = "", longest: int = 20, **more: object
) -> tuple[Result, DivergenceManifest]:
    folder.mkdir(exist_ok=True)
    request = DiffRequest.model_validate(
        {
            "experiment": {
                "device": "cpu",
                "rollout": {"side": "python:planted_sides:factory", "model": str(model), "engine": {"faults": faults}},
                "trainer": {"logprob": "log_softmax"},
                "workload": {"prompts": 4, "prompt_tokens": (8, longest), "new_tokens": 6},
            },
            **more,
        }
    )
    result = run_diff(request, Job(folder))
    return result, artifact.read(folder / result.ids["divergence"], DivergenceManifest)


def stopped(result: Result, found: DivergenceManifest) -> str:
    """Nothing is named; returns the reason."""
    assert result.verdict == "unjudged"
    assert isinstance(found.outcome, Incomparable)
    assert not found.work
    return found.outcome.reason


def changed(folder: Path, change: Callable[[RolloutData], None]) -> str:
    """The rollout of a finished job, changed, as an artifact of its own."""
    data = rollout_store.read(folder / "rollout")
    change(data)
    target = folder / "changed"
    rollout_store.write(target, data, side="planted")
    return str(target)


def test_a_capture_that_moves_logprobs_is_the_first_thing_said(
    models: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meddling(_self: Any, _module: str, _inputs: Any, outputs: Any, *_: Any) -> Any:
        return tuple(output * (1 + 1e-6) for output in outputs)

    monkeypatch.setattr(Recorder, "external", meddling)
    result, found = diffed(models(dtype="bfloat16"), tmp_path / "job", "norm:1")
    assert "capture itself changes" in stopped(result, found)
    assert result.summary.startswith("Capture itself changes 24 of 24 logprobs of the rollout side")
    assert found.passes["trainer"] == 1, "nothing further was asked of the trainer"


def test_a_trainer_whose_capture_moves_logprobs_stops_it_too(
    models: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Recorder.external

    def meddling(self: Recorder, module: str, inputs: Any, outputs: Any, *more: Any) -> Any:
        if self.role == "trainer":
            return tuple(output * (1 + 1e-6) for output in outputs)
        return kept(self, module, inputs, outputs, *more)

    monkeypatch.setattr(Recorder, "external", meddling)
    result, found = diffed(models(dtype="bfloat16"), tmp_path / "job", "norm:1")
    assert stopped(result, found).startswith("trainer: capture itself changes")


def test_a_rollout_that_the_side_does_not_give_again_is_never_called_identical(
    models: Callable[..., Path], tmp_path: Path
) -> None:
    model = models(dtype="bfloat16")
    first, _ = diffed(model, tmp_path / "first")
    assert first.verdict == "equal"

    def one_ulp(data: RolloutData) -> None:
        data.logprob_N[3] = torch.nextafter(data.logprob_N[3], torch.tensor(0.0))

    result, found = diffed(model, tmp_path / "again", rollout=changed(tmp_path / "first", one_ulp))
    assert "does not give the logprobs that the rollout holds: 1 of 24 tokens differ" in stopped(result, found)


def test_other_weights_stop_it_and_are_named(models: Callable[..., Path], tmp_path: Path) -> None:
    result, found = diffed(models(dtype="bfloat16"), tmp_path / "job", "weight:1,norm:0")
    assert "weights differ: model.layers.1.mlp.down_proj.weight" in stopped(result, found)
    assert result.next.startswith("make the weights of both sides equal")


def test_another_meaning_stops_it_before_any_operator_is_named(models: Callable[..., Path], tmp_path: Path) -> None:
    model = models(dtype="bfloat16")
    diffed(model, tmp_path / "first", "norm:1")

    def shifted(data: RolloutData) -> None:
        start = 0
        for sequence in data.sequences:
            part = slice(start, start + len(sequence.sampled))
            data.logprob_N[part] = data.logprob_N[part].roll(1)
            data.valid_N[start] = False
            start = part.stop

    result, found = diffed(model, tmp_path / "again", "norm:1", rollout=changed(tmp_path / "first", shifted))
    assert "previous" in stopped(result, found)
    assert result.summary.startswith("Data or meaning, not numerics")
    assert "line up the rollout's logprobs" in result.next


def test_a_workload_that_cannot_run_is_refused_before_a_side_starts(
    models: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: Any, **__: Any) -> None:
        raise AssertionError("a side was started")

    monkeypatch.setattr(Job, "open_side", opened)
    with pytest.raises(UserError, match="the model takes 128"):
        diffed(models(dtype="bfloat16"), tmp_path / "job", longest=200)


def test_sides_of_two_dtypes_are_refused_before_a_side_starts(
    models: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control is every other diff here: sides of one dtype run."""

    def opened(*_: Any, **__: Any) -> None:
        raise AssertionError("a side was started")

    monkeypatch.setattr(Job, "open_side", opened)
    rollout = {"side": "transformers", "model": str(models(dtype="bfloat16"))}
    workload = {"prompts": 1, "prompt_tokens": (8, 20), "new_tokens": 4}
    both = {"rollout": rollout, "trainer": {"dtype": "float32"}, "workload": workload}
    request = DiffRequest.model_validate({"experiment": {"device": "cpu", **both}})
    with pytest.raises(UserError, match='trainer] dtype = "float32": no tensor of the two sides can have equal bits'):
        run_diff(request, Job(tmp_path))


@pytest.mark.parametrize("stated", ["bfloat16", "float32"])
def test_a_python_side_of_another_dtype_is_refused_once_it_is_open(
    models: Callable[..., Path], tmp_path: Path, stated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As configured before the first pass; a factory that passes over its dtype after it."""
    planted_sides = importlib.import_module("planted_sides")
    made = planted_sides.factory
    monkeypatch.setattr(planted_sides, "factory", lambda model, dtype, device: made(model, torch.bfloat16, device))
    both = {
        "rollout": {"side": "python:planted_sides:factory", "model": str(models(dtype="bfloat16")), "dtype": stated},
        "trainer": {"dtype": "float32"},
        "workload": {"prompts": 1, "prompt_tokens": (8, 20), "new_tokens": 4},
    }
    request = DiffRequest.model_validate({"experiment": {"device": "cpu", **both}})
    with pytest.raises(UserError, match=r"two dtypes \(rollout bfloat16, trainer float32\)") as refused:
        run_diff(request, Job(tmp_path))
    assert "trainer.dtype" in refused.value.next_step
    assert (tmp_path / "passes").exists() == (stated == "float32")
