"""A side that is not equal to itself: the operator is named with its proof before the sides are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from samebits.tools.capture.recorder import Recorder
from samebits.tools.diff.verb import run_diff
from samebits.tools.job.job import Job
from samebits.tools.measure.verb import run_measure
from samebits.tools.schema.artifacts.divergence import Diverged, DivergenceManifest
from samebits.tools.schema.artifacts.gap import GapReport
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import DiffRequest, MeasureRequest
from samebits.tools.sides.python.side import PythonSide
from samebits.tools.sides.scoring.torch_side import TorchSide
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samebits.tools.schema.results import Result
    from samebits.tools.sides.protocol import Scores

pytestmark = pytest.mark.usefixtures("sides_here", "planted")

PLANTED = "python:planted_sides:factory"


def diffed(
    model: Path, folder: Path, rollout: str = "", trainer: str = "", against: str = "trainer", shortest: int = 8
) -> tuple[Result, DivergenceManifest]:
    request = {"experiment": experiment_of(model, rollout, trainer, shortest), "against": against}
    result = run_diff(DiffRequest.model_validate(request), Job(folder))
    return result, artifact.read(folder / result.ids["divergence"], DivergenceManifest)


def experiment_of(model: Path, rollout: str = "", trainer: str = "", shortest: int = 8) -> dict[str, object]:
    """Faults planted in the rollout side and in the trainer; prompts of `shortest` to 20 tokens."""
    sides = {
        "rollout": {"side": PLANTED, "model": str(model), "engine": {"faults": rollout}},
        "trainer": {"side": PLANTED, "logprob": "log_softmax", "options": {"faults": trainer}},
    }
    workload = {"prompts": 4, "prompt_tokens": (shortest, 20), "new_tokens": 6}
    return {"device": "cpu", "workload": workload, **sides}


@pytest.mark.parametrize(("fault", "word"), [("race:1", "race"), ("state:1", "state")])
@pytest.mark.parametrize("role", ["rollout", "trainer"])
def test_the_operator_of_a_side_that_is_not_equal_to_itself_is_named(
    models: Callable[..., Path], tmp_path: Path, fault: str, word: str, role: str
) -> None:
    result, found = diffed(models(dtype="bfloat16"), tmp_path, **{role: fault})
    assert isinstance(found.outcome, Diverged)
    assert [(item.kind, item.between) for item in found.work] == [("linear", "model.layers.1.mlp.down_proj")]
    assert found.work[0].cause.name == word, found.work[0].cause.why
    assert "put back" in found.work[0].cause.why
    assert "not equal to itself" in found.before[-1]
    assert "capture" not in found.before[-1], "the side moves its logprobs, not the capture"
    assert result.verdict == "differs"
    assert f"down_proj, {word}:" in result.summary
    assert "The sides were not compared" in result.summary


@pytest.mark.parametrize(("fault", "word"), [("race:0", "race"), ("state:0", "state")])
def test_asked_again_the_rollout_side_shows_the_operator(
    models: Callable[..., Path], tmp_path: Path, fault: str, word: str
) -> None:
    result, found = diffed(models(dtype="bfloat16"), tmp_path, rollout=fault, against="repeat")
    assert [(item.between, item.cause.name) for item in found.work] == [("model.layers.0.mlp.down_proj", word)]
    assert result.verdict == "differs"


@pytest.mark.parametrize(("role", "fault"), [("rollout", "race:1"), ("trainer", "state:0"), ("rollout", "")])
def test_measure_says_which_side_is_not_equal_to_itself_and_blames_no_capture(
    models: Callable[..., Path], tmp_path: Path, role: str, fault: str
) -> None:
    """Without a fault it says so of neither."""
    experiment = experiment_of(models(dtype="bfloat16"), **{role: fault})
    result = run_measure(MeasureRequest.model_validate({"experiment": experiment, "axes": ()}), Job(tmp_path))
    report = artifact.read(tmp_path / result.ids["gap"], GapReport)
    assert (report.sound, report.unsteady) == ((False, (role,)) if fault else (True, ()))
    assert ("not equal to itself" in result.summary) is bool(fault)
    assert "capture" not in result.summary
    assert result.verdict == ("unjudged" if fault else "equal")
    assert result.next.startswith("samebits diff") is bool(fault)


@pytest.fixture
def batched(monkeypatch: pytest.MonkeyPatch, planted: None) -> None:
    """The planted rollout side takes four sequences at once, or as many as it is asked to."""

    def score(self: PythonSide, *args: Any) -> Scores:
        self.layout, self.micro_batch = "padded", 4
        return TorchSide.score(self, *args)

    monkeypatch.setattr(PythonSide, "score", score)


@pytest.mark.usefixtures("batched")
def test_a_linear_that_follows_the_batch_is_named_though_no_switch_is_known(
    models: Callable[..., Path], tmp_path: Path
) -> None:
    _, found = diffed(models(dtype="bfloat16"), tmp_path, rollout="batch:1", against="batch", shortest=20)
    assert found.gap.nonzero
    assert [item.between for item in found.work] == ["model.layers.1.mlp.down_proj"]
    assert found.work[0].cause.name == "order_batch"
    assert "by themselves than among" in found.work[0].cause.why


@pytest.mark.usefixtures("batched")
def test_against_itself_too_a_capture_that_moves_logprobs_is_refused(
    models: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control is the test above: the same request without the meddling names an operator."""

    def meddling(_self: Any, _module: str, _inputs: Any, outputs: Any, *_: Any) -> Any:
        return tuple(output * (1 + 1e-6) for output in outputs)

    monkeypatch.setattr(Recorder, "external", meddling)
    with pytest.raises(UserError, match="the captured run changes 24 of 24 logprobs"):
        diffed(models(dtype="bfloat16"), tmp_path, rollout="batch:1", against="batch", shortest=20)
    assert not (tmp_path / "divergence").exists()


def test_a_side_that_repeats_is_identical_to_itself(models: Callable[..., Path], tmp_path: Path) -> None:
    result, found = diffed(models(dtype="bfloat16"), tmp_path, rollout="linear:0", against="repeat")
    assert (result.verdict, found.outcome.status, found.work) == ("equal", "identical", ())


def test_a_steady_operator_is_neither_race_nor_state(models: Callable[..., Path], tmp_path: Path) -> None:
    _, found = diffed(models(dtype="bfloat16"), tmp_path, rollout="linear:1")
    assert [item.between for item in found.work] == ["model.layers.1.mlp.down_proj"]
    assert found.work[0].cause.name not in ("race", "state")


def test_memory_that_nobody_wrote_is_state_across_the_sides(models: Callable[..., Path], tmp_path: Path) -> None:
    """Equal to itself call after call, and still not a function of its inputs."""
    _, found = diffed(models(dtype="bfloat16"), tmp_path, rollout="unwritten:1")
    assert [item.between for item in found.work] == ["model.layers.1.mlp.down_proj"]
    assert found.work[0].cause.name == "state", found.work[0].cause.why
    assert "the rollout's operator: it reads memory that nobody wrote" in found.work[0].cause.why
