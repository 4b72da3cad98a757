"""The whole verb, on real transformers models: sides in this process where not said otherwise."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from samebits.tools.job.job import Job
from samebits.tools.measure.verb import run_measure
from samebits.tools.schema.artifacts.gap import GapReport
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import MeasureRequest
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samebits.tools.schema.results import Result

WORKLOAD = {"prompts": 4, "prompt_tokens": (3, 12), "new_tokens": 6}


def request(
    model: Path, *, rollout: Any = None, trainer: Any = None, workload: Any = None, **more: Any
) -> MeasureRequest:
    experiment = {
        "device": "cpu",
        "rollout": {"side": "transformers", "model": str(model), "dtype": "float32"} | (rollout or {}),
        "trainer": {"dtype": "float32"} | (trainer or {}),
        "workload": WORKLOAD | (workload or {}),
    }
    return MeasureRequest.model_validate({"experiment": experiment, **more})


def measured(folder: Path, asked: MeasureRequest) -> tuple[Result, GapReport]:
    folder.mkdir(exist_ok=True)
    result = run_measure(asked, Job(folder))
    return result, artifact.read(folder / result.ids["gap"], GapReport)


def rows_file(folder: Path, job: Path, change: Callable[[dict[str, Any]], None] | None = None) -> Path:
    """The rollout of a job as the user's own rows."""
    from samebits.tools.sides import rollout_store

    data = rollout_store.read(job / "rollout")
    path, start = folder / "rows.jsonl", 0
    with path.open("w", encoding="utf-8") as file:
        for sequence in data.sequences:
            part = slice(start, start + len(sequence.sampled))
            start = part.stop
            row = {
                "prompt_ids": sequence.prompt,
                "sampled_ids": sequence.sampled,
                "logprobs": data.logprob_N[part].tolist(),
            }
            if change is not None:
                change(row)
            file.write(json.dumps(row) + "\n")
    return path


@pytest.mark.usefixtures("sides_here")
def test_numerics_are_measured_and_every_step_says_what_it_found(models: Callable[..., Path], tmp_path: Path) -> None:
    result, report = measured(tmp_path / "job", request(models()))
    assert (result.verdict, report.stats.tokens, report.stats.nonfinite) == ("differs", 24, 0)
    assert 0 < report.stats.max < 1e-3
    assert (report.weights, report.weights_text, report.sound) == ("equal", "equal (25 tensors)", True)
    assert report.not_numerics == ()
    assert "captured and plain runs agree on all 24 logprobs" in report.could_fail
    assert report.could_fail.count("one ulp at") == 2, "both sides"
    outcomes = {(axis.side, axis.name): axis.outcome.status for axis in report.axes}
    assert outcomes["trainer", "repeat"] == outcomes["rollout", "repeat"] == "same"
    assert outcomes["rollout", "decode_prefill"] == "varies"
    assert outcomes["rollout", "batch"] == outcomes["trainer", "micro_batch"] == "not_run"
    assert ("rollout", "eager_compiled") not in outcomes
    assert report.made_from["rollout"] == artifact.identity(tmp_path / "job" / result.ids["rollout"])
    assert result.rows[0]["nonzero"] == report.stats.nonzero
    assert "decode_prefill" in result.next
    assert report.environment.packages["torch"]


@pytest.mark.usefixtures("sides_here")
def test_a_side_against_its_own_kind_is_exact(models: Callable[..., Path], tmp_path: Path) -> None:
    """One side generates with a recompute per token, the other scores: the same forward at the same shapes would be
    needed for equal bits, so the rollout is the trainer's own logprobs, read from rows."""
    first, report = measured(tmp_path / "one", request(models(), axes=()))
    own = iter(report_trainer(tmp_path / "one" / first.ids["gap"]))

    def trainers_own(row: dict[str, Any]) -> None:
        row["logprobs"] = [next(own) for _ in row["sampled_ids"]]

    path = rows_file(tmp_path, tmp_path / "one", trainers_own)
    result, report = measured(tmp_path / "two", request(models(), rollout={"side": f"file:{path}"}, axes=()))
    assert (result.verdict, report.stats.exact, report.stats.tokens) == ("equal", True, 24)
    assert result.exit_code == 0


def report_trainer(folder: Path) -> list[float]:
    values: list[float] = artifact.load_tensors(folder, "gap.safetensors")["trainer"].tolist()
    return values


@pytest.mark.usefixtures("sides_here")
def test_differing_weights_stop_everything_after_them(models: Callable[..., Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    other = tmp_path / "other"
    shutil.copytree(models(), other)
    weights = load_file(other / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][5, 7] *= 1.5
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    result, report = measured(tmp_path / "job", request(models(), trainer={"model": str(other)}))
    assert report.weights == "differ"
    assert report.weights_text.startswith("differ: model.layers.1.mlp.up_proj.weight; only on the rollout side")
    assert {axis.outcome.status for axis in report.axes} == {"not_run"}
    assert all("weights differ" in axis.outcome.reason for axis in report.axes if axis.outcome.status == "not_run")
    assert report.not_numerics == ()
    assert (result.verdict, "weights" in result.next) == ("differs", True)


@pytest.mark.usefixtures("sides_here")
def test_rows_of_a_file_with_another_temperature_are_explained_and_no_axis_runs(
    models: Callable[..., Path], tmp_path: Path
) -> None:
    measured(tmp_path / "one", request(models(), workload={"temperature": 0.7}, axes=()))
    path = rows_file(tmp_path, tmp_path / "one")
    result, report = measured(tmp_path / "two", request(models()).model_copy(update={"rollout": str(path)}))
    assert report.not_numerics[0].cause == "temperature"
    assert report.not_numerics[0].residual < 1e-5
    assert report.weights == "unchecked"
    assert report.weights_text.startswith("not checked: the rollout is a file")
    assert {axis.outcome.status for axis in report.axes} == {"not_run"}
    assert "temperature" in result.summary
    assert result.verdict == "differs"


@pytest.mark.usefixtures("sides_here")
def test_nothing_valid_is_never_exact(models: Callable[..., Path], tmp_path: Path) -> None:
    measured(tmp_path / "one", request(models(), axes=()))
    path = rows_file(tmp_path, tmp_path / "one", lambda row: row.update(mask=[0] * len(row["sampled_ids"])))
    result, report = measured(tmp_path / "two", request(models(), rollout={"side": f"file:{path}"}))
    assert (result.verdict, report.stats.tokens, result.exit_code) == ("unjudged", 0, 2)
    assert "every sampled token is masked" in result.summary
    outcomes = {str(row["check"]): row for row in result.rows}
    assert outcomes["rollout against trainer"]["outcome"] == outcomes["could it fail"]["outcome"] == "nothing compared"
    assert outcomes["rollout against trainer"]["max"] is None
    assert outcomes["weights"]["outcome"] == "not checked"
    assert "no valid logprob to compare" in report.could_fail
    assert "agree" not in report.could_fail


@pytest.mark.usefixtures("sides_here")
def test_rows_without_a_sampled_token_are_not_called_masked(models: Callable[..., Path], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt_ids": [5, 6], "sampled_ids": [], "logprobs": []}\n')
    result, report = measured(tmp_path / "job", request(models(), rollout={"side": f"file:{path}"}))
    assert (result.verdict, report.stats.tokens) == ("unjudged", 0)
    assert "no row holds a sampled token" in result.summary
    assert "masked" not in result.summary


@pytest.mark.usefixtures("sides_here")
def test_nothing_finite_is_said_in_words_and_never_as_zero(models: Callable[..., Path], tmp_path: Path) -> None:
    measured(tmp_path / "one", request(models(), axes=()))
    path = rows_file(tmp_path, tmp_path / "one", lambda row: row.update(logprobs=[float("nan")] * len(row["logprobs"])))
    result, _ = measured(tmp_path / "two", request(models(), rollout={"side": f"file:{path}"}, axes=()))
    row = result.rows[0]
    assert (row["not finite"], row["max"], row["k3"]) == (24, "none finite", "none finite")
    assert "not finite (rollout nan" in str(row["detail"])
    assert "none finite on both sides" in result.summary
    assert "24 on the rollout side" in result.summary
    assert "not finite" in result.next
    assert len({tuple(row) for row in result.rows}) == 1, "one table"


@pytest.mark.usefixtures("sides_here")
def test_a_sampled_token_outside_the_trainers_kept_set_is_explained(
    models: Callable[..., Path], tmp_path: Path
) -> None:
    """Planted: a rollout sampled from 40 tokens, recorded as from 2."""
    measured(tmp_path / "one", request(models(), workload={"top_k": 40, "temperature": 2.0}, axes=()))
    path = rows_file(tmp_path, tmp_path / "one", lambda row: row.update(temperature=2.0, top_k=2))
    result, report = measured(tmp_path / "two", request(models(), rollout={"side": f"file:{path}"}, axes=()))
    assert report.stats.nonfinite > 0
    said = f"{report.stats.nonfinite} of 24 sampled tokens are outside the trainer's kept set (top-k 2)"
    assert said in result.summary
    assert said in report.notes[0]
    assert "near-ties" in result.summary


@pytest.mark.usefixtures("sides_here")
def test_greedy_rows_are_said_to_be_taken_raw(models: Callable[..., Path], tmp_path: Path) -> None:
    _, report = measured(tmp_path / "job", request(models(), workload={"temperature": 0.0, "top_k": 5}, axes=()))
    assert len(report.notes) == 1
    assert "at temperature 1 without top-p and top-k" in report.notes[0]
    assert report.stats.max < 1e-3


@pytest.mark.usefixtures("sides_here")
def test_a_rounding_that_explains_little_denies_nothing(models: Callable[..., Path], tmp_path: Path) -> None:
    """Four places of decimals beside noise of a hundredth of a nat."""
    measured(tmp_path / "one", request(models(), axes=()))
    noise = iter([0.01, -0.02, 0.007] * 8)
    path = rows_file(
        tmp_path,
        tmp_path / "one",
        lambda row: row.update(logprobs=[min(round(lp + next(noise), 4), 0.0) for lp in row["logprobs"]]),
    )
    result, report = measured(tmp_path / "two", request(models(), rollout={"side": f"file:{path}"}))
    assert [cause.cause for cause in report.not_numerics] == ["transport_rounding"]
    assert "Present, explains little" in result.summary
    assert "not numerics" not in result.summary
    assert "transport_rounding" not in result.next
    assert "whole float32 values" in result.next
    outcomes = {(axis.side, axis.name): axis.outcome.status for axis in report.axes}
    assert outcomes["trainer", "repeat"] == "same", "the sides are still asked"


@pytest.mark.usefixtures("sides_here")
def test_progress_names_only_axes_that_a_side_has(models: Callable[..., Path], tmp_path: Path) -> None:
    _, report = measured(tmp_path / "job", request(models()))
    lines = (tmp_path / "job" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    said = [event["message"] for event in map(json.loads, lines) if event["phase"] == "axes"]
    assert said == [
        "trainer against itself: repeat",
        "trainer against itself: micro_batch",
        "rollout side against itself: repeat",
        "rollout side against itself: batch",
        "rollout side against itself: decode_prefill",
    ]
    absent = [axis for axis in report.axes if axis.name in ("chunked_prefill", "prefix_hit")]
    assert {axis.outcome.reason for axis in absent if axis.outcome.status == "not_run"} == {
        "this side has no such thing"
    }


@pytest.mark.usefixtures("sides_here")
def test_one_nonfinite_logprob_fails_and_is_the_worst_token(models: Callable[..., Path], tmp_path: Path) -> None:
    measured(tmp_path / "one", request(models(), axes=()))
    changed = iter([True])
    path = rows_file(
        tmp_path,
        tmp_path / "one",
        lambda row: row["logprobs"].__setitem__(1, float("nan")) if next(changed, False) else None,
    )
    result, report = measured(tmp_path / "two", request(models(), rollout={"side": f"file:{path}"}))
    assert (result.verdict, report.stats.nonfinite) == ("differs", 1)
    assert (report.worst[0].sequence, report.worst[0].position) == (0, 4)


@pytest.mark.usefixtures("sides_here")
def test_a_padded_trainer_that_depends_on_its_micro_batch_is_found(models: Callable[..., Path], tmp_path: Path) -> None:
    asked = request(models(), trainer={"layout": "padded", "micro_batch": 2}, axes=("micro_batch", "repeat"))
    _, report = measured(tmp_path / "job", asked)
    axis = next(axis for axis in report.axes if axis.name == "micro_batch")
    assert axis.outcome.status == "varies", "float32 products of other shapes have other bits on every CPU we know"
    assert "micro batch 1" in axis.outcome.trigger


@pytest.mark.usefixtures("sides_here")
def test_a_capture_that_moves_bits_is_the_first_thing_said(
    models: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: a recorder that hands on a changed logprob."""
    from samebits.tools.capture.recorder import Recorder

    def meddling(_self: Any, _module: str, _inputs: Any, outputs: Any, *_: Any) -> Any:
        return tuple(output * (1 + 1e-6) for output in outputs)

    monkeypatch.setattr(Recorder, "external", meddling)
    result, report = measured(tmp_path / "job", request(models()))
    assert result.verdict == "unjudged"
    assert "capture itself changes" in report.could_fail
    assert {axis.outcome.status for axis in report.axes} == {"not_run"}


@pytest.mark.usefixtures("sides_here")
def test_a_change_that_nobody_sees_is_the_first_thing_said(
    models: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: edits that are silently dropped."""
    from samebits.tools.sides.scoring import recording

    kept = recording.recorded
    monkeypatch.setattr(
        recording, "recorded", lambda side, data, plan, edits, folder: kept(side, data, plan, (), folder)
    )
    result, report = measured(tmp_path / "job", request(models()))
    assert result.verdict == "unjudged"
    assert "would go unseen" in report.could_fail


@pytest.mark.parametrize(
    ("given", "said"),
    [("absent.jsonl", "no rollout here"), ("folder", "no rollout artifact"), ("bad.jsonl", "line 1, field 'logprobs'")],
)
@pytest.mark.usefixtures("sides_here")
def test_a_rollout_that_is_none_is_refused_before_a_side_starts(
    given: str, said: str, models: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "bad.jsonl").write_text('{"prompt_ids": [1], "sampled_ids": [1], "logprobs": ["x"]}')
    with pytest.raises(UserError, match=said):
        measured(
            tmp_path / "job", request(models(), rollout=None).model_copy(update={"rollout": str(tmp_path / given)})
        )
    assert not (tmp_path / "job" / "sides").exists()


def test_the_worker_runs_both_sides_as_processes_and_leaves_whole_artifacts(
    models: Callable[..., Path], tmp_path: Path
) -> None:
    """No process border is replaced here."""
    job = tmp_path / "job"
    job.mkdir()
    (job / "request.json").write_text(request(models(), axes=("repeat",)).model_dump_json(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "samebits.tools.worker", str(job)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    outcome = json.loads((job / "result.json").read_text(encoding="utf-8"))
    assert (done.returncode, outcome["state"]) == (0, "succeeded"), outcome
    report = artifact.read(job / outcome["result"]["ids"]["gap"], GapReport)
    assert report.stats.tokens == 24
    assert not list(job.rglob("*.part"))


def test_sides_of_two_dtypes_are_named_in_the_headline_and_in_the_next_step(
    models: Callable[..., Path], sides_here: None, tmp_path: Path
) -> None:
    result, report = measured(tmp_path / "two", request(models(), rollout={"dtype": "bfloat16"}, axes=()))
    assert report.two_dtypes == "rollout bfloat16, trainer float32"
    assert "They are of two dtypes: rollout bfloat16, trainer float32." in result.summary
    assert "trainer.dtype" in str(result.next)
    one, report = measured(tmp_path / "one", request(models(), axes=()))
    assert (report.two_dtypes, "two dtypes:" in one.summary, "trainer.dtype" in str(one.next)) == ("", False, False)


@pytest.mark.usefixtures("sides_here")
@pytest.mark.parametrize(("by", "data"), [(3.0, True), (1e-6, False)])
def test_rows_that_are_nats_away_are_called_wrong_data_and_rounding_is_not(
    models: Callable[..., Path], tmp_path: Path, by: float, data: bool
) -> None:
    def moved(row: dict[str, Any]) -> None:
        row["logprobs"] = [value - by * (1 + k % 3) for k, value in enumerate(row["logprobs"])]

    measured(tmp_path / "one", request(models(), axes=()))
    path = rows_file(tmp_path, tmp_path / "one", moved)
    result, report = measured(tmp_path / "two", request(models(), axes=()).model_copy(update={"rollout": str(path)}))
    assert (report.not_numerics, report.weights) == ((), "unchecked")
    assert ("wrong data, not kernels" in str(result.next), "needs an engine" in str(result.next)) == (data, not data)
