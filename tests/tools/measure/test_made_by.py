"""A stored rollout goes with the side and the model that sampled it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from samebits.tools.diff.verb import run_diff
from samebits.tools.job.job import Job
from samebits.tools.measure.verb import run_measure
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import DiffRequest, MeasureRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("sides_here")


def settings(model: Path, **rollout: Any) -> dict[str, Any]:
    return {
        "device": "cpu",
        "rollout": {"side": "transformers", "model": str(model), "dtype": "float32"} | rollout,
        "trainer": {"dtype": "float32"},
        "workload": {"prompts": 2, "prompt_tokens": (4, 8), "new_tokens": 4},
    }


def measured(folder: Path, experiment: dict[str, Any], rollout: Path | None = None) -> Path:
    """The rollout's folder."""
    given = {"experiment": experiment, "axes": (), "rollout": None if rollout is None else str(rollout)}
    folder.mkdir()
    run_measure(MeasureRequest.model_validate(given), Job(folder))
    return folder / "rollout"


def test_a_rollout_of_another_model_or_side_is_refused_and_both_are_named(
    models: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = measured(tmp_path / "made", settings(models()))
    other = models(seed=1)
    monkeypatch.setattr(Job, "open_side", lambda *_, **__: pytest.fail("a side was opened"))
    with pytest.raises(UserError, match="was sampled from") as refused:
        measured(tmp_path / "measure", settings(other), rollout)
    assert str(other) in str(refused.value)
    assert "--config" in refused.value.next_step
    for against in ("trainer", "batch"):
        request = {"experiment": settings(other), "rollout": str(rollout), "against": against}
        with pytest.raises(UserError, match="was sampled from"):
            run_diff(DiffRequest.model_validate(request), Job(tmp_path))
    with pytest.raises(UserError, match=r'sampled by side "transformers", .* "vllm" here'):
        measured(tmp_path / "side", settings(models(), side="vllm", max_model_len=64), rollout)


def test_the_same_model_elsewhere_and_other_settings_of_it_are_taken(
    models: Callable[..., Path], tmp_path: Path
) -> None:
    rollout = measured(tmp_path / "made", settings(models()))
    copied = shutil.copytree(models(), tmp_path / "copy")
    measured(tmp_path / "again", settings(copied, max_model_len=100, env={"A": "1"}), rollout)
