"""The gate's decisions on sides in this process that are exact by construction, and on the faults planted in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
import torch

from samebits.tools.gate.regression.answer import DIFF
from samebits.tools.job.job import Job
from samebits.tools.schema.artifacts.regression import Lock, RegressionReport
from samebits.tools.schema.errors import UserError
from samebits.tools.sides.protocol import Scores
from samebits.tools.sides.scoring.torch_side import TorchSide
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from collections.abc import Callable

    from samebits.tools.schema.results import Result

RUNS = (
    "repeat",
    "lengths",
    "decode_prefill",
    "reload",
    "restart",
    "trainer_repeat",
    "micro_batch",
    "layout",
    "gradients",
    "trainer_rollout",
)
pytestmark = pytest.mark.usefixtures("sides_here")


def status(report: RegressionReport) -> dict[str, str]:
    return {axis.name: axis.outcome.status for axis in report.axes}


def test_an_exact_pair_is_green_and_every_control_failed(
    gated: Callable[..., tuple[Result, RegressionReport]], tmp_path: Path
) -> None:
    result, report = gated()
    assert report.verdict.kind == "green", report.verdict
    assert (result.verdict, result.exit_code) == ("equal", 0)
    proved = {axis.name for axis in report.axes if axis.outcome.status == "exact"}
    assert proved == set(RUNS), [axis.outcome for axis in report.axes]
    for axis in report.axes:
        if axis.outcome.status == "exact":
            assert axis.control is not None
            assert axis.control.stats.nonzero > 0
            assert axis.control.disturbed
        else:
            assert axis.outcome.status == "not_run"
            assert axis.outcome.reason
    lock = Lock.model_validate_json((tmp_path / result.ids["lock"]).read_text())
    assert set(lock.axes) == set(RUNS)
    assert lock.gate == artifact.identity(tmp_path / result.ids["regression"])
    assert set(lock.not_proved) == set(status(report)) - set(RUNS)


def test_where_no_hook_runs_every_control_is_a_matrix_moved_and_brought_back(
    gated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samebits.tools.gate.regression.bench.Bench._find_tap", lambda *_: "CUDA graphs")
    _, report = gated()
    assert report.verdict.kind == "green", report.verdict
    assert {axis.name for axis in report.axes if axis.outcome.status == "exact"} == set(RUNS)
    for axis in report.axes:
        if axis.control is not None and axis.name != "reload":
            assert "on weights with every element of head.weight moved by one ulp" in axis.control.disturbed


def test_the_comparison_sees_one_flipped_bit_as_one_token(gated: Callable[..., Any]) -> None:
    _, report = gated(axes=("trainer_repeat",))
    assert (report.comparison.stats.nonzero, report.comparison.stats.tokens) == (1, 30)
    assert report.comparison.ulps == (29, 1)


def test_other_weights_must_arrive_on_both_sides(gated: Callable[..., Any]) -> None:
    _, report = gated(axes=("reload", "trainer_rollout"))
    words = [way.words for axis in report.axes for way in axis.compared]
    assert words[-1] == "the same after other weights were pushed into both sides"
    assert "not pushed with the others" in report.axes[0].control.disturbed


@pytest.mark.parametrize(
    ("fault", "axis"),
    [
        ({"rollout": {"engine": {"fault": "decode"}}}, "decode_prefill"),
        ({"trainer": {"options": {"fault": "company"}}}, "micro_batch"),
        ({"trainer": {"options": {"fault": "decode"}}}, None),
        ({"rollout": {"engine": {"fault": "decode"}}}, "trainer_rollout"),
    ],
)
def test_a_planted_difference_is_red_on_its_axis(gated: Callable[..., Any], fault: Any, axis: str | None) -> None:
    # The trainer never decodes: its fault is the control of this test.
    result, report = gated(**fault)
    differing = [name for name, outcome in status(report).items() if outcome == "differs"]
    if axis is None:
        assert (differing, result.exit_code) == ([], 0)
        return
    assert axis in differing
    assert (report.verdict.kind, result.verdict, result.exit_code) == ("red", "differs", 1)
    assert "lock" not in result.ids
    assert result.next.startswith("samebits diff") == any(name in DIFF for name in differing), differing


def test_a_control_that_cannot_fail_is_vacuous_and_not_green(gated: Callable[..., Any]) -> None:
    result, report = gated(trainer={"options": {"fault": "deaf"}}, rollout={"engine": {"fault": "deaf"}})
    found = status(report)
    assert found["trainer_rollout"] == found["trainer_repeat"] == found["repeat"] == "vacuous"
    assert found["reload"] == "exact"
    assert (report.verdict.kind, result.exit_code) == ("unjudged", 2)


def test_a_trainer_that_hands_back_the_reported_logprobs_is_vacuous(
    gated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = TorchSide.score

    def echo(self: Any, data: Any, how: Any, plan: Any, edits: Any, folder: Path) -> Scores:
        scores = real(self, data, how, plan, edits, folder)
        return scores if self.role == "rollout" else Scores(data.logprob_N, scores.scored_N, scores.facts)

    monkeypatch.setattr(TorchSide, "score", echo)
    result, report = gated(axes=("trainer_rollout",))
    assert report.axes[0].outcome.status == "vacuous"
    assert result.exit_code == 2


def test_logprobs_that_are_not_finite_are_red_even_when_equal(gated: Callable[..., Any]) -> None:
    result, report = gated(trainer={"options": {"fault": "nan"}}, axes=("trainer_repeat", "trainer_rollout"))
    assert status(report)["trainer_repeat"] == "differs"
    assert any("not finite" in reason for reason in report.verdict.reasons)
    assert result.exit_code == 1


def test_too_few_tokens_prove_nothing(gated: Callable[..., Any]) -> None:
    result, report = gated(gate={"min_tokens": 31}, axes=("trainer_repeat",))
    assert report.axes[0].outcome.status == "too_few"
    assert (report.verdict.kind, result.exit_code) == ("unjudged", 2)
    assert "workload.prompts=12" in result.next, "31 of 30 tokens: twice the prompts"


def test_the_next_step_for_too_few_tokens_is_one_that_mends_it(gated: Callable[..., Any], tmp_path: Path) -> None:
    given = {"gate": {"min_tokens": 31}, "axes": ("trainer_repeat",)}
    gated(**given, job="one")
    result, _ = gated(**given, job="two", stored=str(tmp_path / "one" / "rollout"))
    assert "give it a rollout of 12 sequences (this one has 6)" in result.next


def test_more_tokens_are_no_remedy_for_lost_ones(gated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    real = TorchSide.score

    def loses(self: Any, *given: Any) -> Scores:
        scores = real(self, *given)
        scores.scored_N[-1] = False
        return scores

    monkeypatch.setattr(TorchSide, "score", loses)
    result, report = gated(axes=("trainer_repeat",))
    assert (report.axes[0].outcome.status, report.axes[0].outcome.tokens) == ("too_few", 29)
    assert "trainer_repeat lost tokens" in result.next
    assert "prompts" not in result.next


@pytest.mark.parametrize("enough", [True, False])
def test_every_axis_compares_enough_where_the_workload_has_enough(gated: Callable[..., Any], enough: bool) -> None:
    """The negative control: one token more than the workload has is too few for every axis but lengths, which makes
    its own sequences.
    """
    result, report = gated(gate={"min_tokens": 30 if enough else 31})
    found = status(report)
    if enough:
        assert report.verdict.kind == "green", report.verdict
        assert {name for name, outcome in found.items() if outcome == "exact"} == set(RUNS)
    else:
        assert {name for name, outcome in found.items() if outcome == "too_few"} == set(RUNS) - {"lengths"}
        assert "workload.prompts=12" in result.next


def test_a_layout_of_single_sequences_has_no_micro_batch_to_vary(gated: Callable[..., Any]) -> None:
    _, report = gated(trainer={"layout": "single"}, axes=("micro_batch",), job="single")
    assert report.axes[0].outcome.status == "not_run"
    assert 'set "packed" or "padded"' in report.axes[0].outcome.reason
    _, report = gated(trainer={"layout": "padded"}, axes=("micro_batch",), job="padded")
    assert report.axes[0].outcome.status == "exact"


def test_a_required_axis_that_cannot_run_is_a_failure(gated: Callable[..., Any], tmp_path: Path) -> None:
    result, report = gated(axes=("batch", "trainer_repeat"), require=("batch",))
    assert status(report) == {"batch": "not_run", "trainer_repeat": "exact"}
    assert (report.verdict.kind, result.exit_code) == ("unjudged", 2)
    assert "required, but not run" in result.summary
    suite = ElementTree.parse(tmp_path / "gate" / "junit.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "0")


def test_the_same_axis_not_required_is_named_and_skipped(gated: Callable[..., Any], tmp_path: Path) -> None:
    result, report = gated(axes=("batch", "trainer_repeat"))
    assert report.verdict.kind == "green"
    assert "Not run: batch" in result.summary
    suite = ElementTree.parse(tmp_path / "gate" / "junit.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "1")


def test_when_nothing_can_run_nothing_is_proved(gated: Callable[..., Any]) -> None:
    result, report = gated(axes=("batch", "prefix_hit"))
    assert (report.verdict.kind, report.verdict.reasons, result.exit_code) == ("unjudged", ("no axis could run",), 2)


def test_rows_of_a_file_have_no_engine_and_the_trainer_is_still_asked(
    gated: Callable[..., Any], tmp_path: Path, model: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    row = {"prompt_ids": [1, 2], "sampled_ids": [3, 4], "logprobs": [-1.0, -2.0]}
    rows.write_text("\n".join(json.dumps(row) for _ in range(12)))
    result, report = gated(rollout={"side": f"file:{rows}"}, axes=("repeat", "trainer_rollout"))
    assert status(report) == {"repeat": "not_run", "trainer_rollout": "differs"}
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"axes": ("bach",)}, "'bach'"),
        ({"axes": ("batch",), "require": ("reload",)}, "required axis 'reload'"),
        ({"gate": {"require": ("everything",)}}, "required axis 'everything'"),
    ],
)
def test_unknown_axes_are_refused(gated: Callable[..., Any], given: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        gated(**given)


def test_a_rollout_beyond_the_trainers_limit_is_named_and_no_verdict_is_made(
    gated: Callable[..., Any], tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt_ids": [1] * 70, "sampled_ids": [3], "logprobs": [-1.0]}))
    with pytest.raises(UserError, match=r"rows\.jsonl line 1: 71 tokens, the trainer side's model takes 64"):
        gated(rollout={"side": f"file:{rows}"}, axes=("trainer_rollout",))
    assert not (tmp_path / "gate").exists()


def test_a_rollout_without_valid_tokens_is_refused(gated: Callable[..., Any], tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt_ids": [1], "sampled_ids": [3], "logprobs": [-1.0], "mask": [0]}))
    with pytest.raises(UserError, match="no valid token"):
        gated(rollout={"side": f"file:{rows}"})


def test_stored_columns_are_those_that_were_compared(gated: Callable[..., Any], tmp_path: Path) -> None:
    gated(axes=("repeat", "trainer_rollout"))
    stored = artifact.load_tensors(tmp_path / "gate", "gate.safetensors")
    assert sorted(stored) == ["plain", "reported", "trainer", "valid"]
    assert torch.equal(stored["plain"].view(torch.int32), stored["trainer"].view(torch.int32))


def test_a_switch_that_changes_nothing_makes_restart_vacuous(
    gated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samebits.tools.gate.regression.process_axes.switchable", lambda bench: True)
    result, report = gated(axes=("restart",))
    assert report.axes[0].outcome.status == "vacuous"
    assert result.exit_code == 2


def test_an_engine_that_refuses_the_switch_leaves_its_axes_without_a_control(
    gated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samebits.tools.gate.regression.process_axes.switchable", lambda bench: True)
    opened = Job.open_side

    def refuse(self: Job, role: Any, experiment: Any, **given: Any) -> Any:
        if "env" in given:
            raise UserError("the engine", "does not start", "look")
        return opened(self, role, experiment, **given)

    monkeypatch.setattr(Job, "open_side", refuse)
    _, report = gated(axes=("restart",))
    assert report.axes[0].outcome.status == "not_run"
    assert "the engine: does not start" in report.axes[0].outcome.reason
    assert len(report.axes[0].compared) == 1
