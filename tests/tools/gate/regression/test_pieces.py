"""A gate in pieces, its time limits, its throughput, and the lock it leaves."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from samebits.tools.gate.regression import judge, speed, trainer_axes, verb
from samebits.tools.job.job import Job
from samebits.tools.schema.artifacts.regression import Lock, NoThroughput, Rate, Throughput
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Experiment, Rollout
from samebits.tools.sides.protocol import Scores
from samebits.tools.sides.scoring.torch_side import TorchSide
from samebits.tools.sides.session import Deadline, OutOfTime, Session, SideDied
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("sides_here")


def test_two_pieces_make_one_report(gated: Callable[..., Any], tmp_path: Path) -> None:
    first, one = gated(axes=("repeat", "decode_prefill"), job="one")
    result, two = gated(
        axes=("repeat", "trainer_rollout"), require=("repeat",), resume=str(tmp_path / "one"), job="two"
    )
    assert [axis.name for axis in two.axes] == ["repeat", "decode_prefill", "trainer_rollout"]
    assert [axis.outcome.status for axis in two.axes] == ["exact"] * 3
    assert two.axes[0].compared == one.axes[0].compared, "not run again"
    assert two.axes[0].required
    assert two.made_from["rollout"] == one.made_from["rollout"]
    assert two.made_from["earlier piece"]
    assert two.seconds > one.seconds
    assert (first.verdict, result.verdict) == ("equal", "equal")
    lock = Lock.model_validate_json((tmp_path / "two" / result.ids["lock"]).read_text())
    assert set(lock.axes) == {"repeat", "decode_prefill", "trainer_rollout"}


@pytest.mark.parametrize("given", ["", "gate"])
@pytest.mark.parametrize("stored", [False, True])
def test_a_chain_of_pieces_is_as_long_as_one_likes(
    gated: Callable[..., Any], tmp_path: Path, given: str, stored: bool
) -> None:
    """Each piece is given as its job folder or as its report; its rollout is sampled by the first, or was stored."""
    rollout = None
    if stored:
        gated(axes=("trainer_repeat",), job="elsewhere")
        rollout = str(tmp_path / "elsewhere" / "rollout")
    names = ("repeat", "decode_prefill", "trainer_repeat", "trainer_rollout")
    before = ""
    for count, name in enumerate(names, 1):
        result, report = gated(axes=(name,), resume=before, job=name, stored=rollout)
        assert {axis.name: axis.outcome.status for axis in report.axes} == dict.fromkeys(names[:count], "exact")
        assert result.ids["rollout"] == "rollout"
        assert artifact.identity(tmp_path / name / "rollout") == report.made_from["rollout"]
        if before:  # what was gone on from is needed no more
            shutil.rmtree(tmp_path / names[count - 2])
        before, rollout = str(tmp_path / name / given), None
    lock = Lock.model_validate_json((tmp_path / names[-1] / result.ids["lock"]).read_text())
    assert set(lock.axes) == set(names)


@pytest.mark.parametrize("fault", ["removed", "another", "altered"])
def test_a_chain_ends_with_one_error_where_its_rollout_is_gone(
    gated: Callable[..., Any], tmp_path: Path, fault: str
) -> None:
    _, first = gated(axes=("repeat",), job="one")
    gated(axes=("trainer_repeat",), resume=str(tmp_path / "one"), job="two")
    rollout, whole = tmp_path / "two" / "rollout", tmp_path / "one" / "rollout"
    go_on: dict[str, Any] = {"axes": ("trainer_rollout",), "resume": str(tmp_path / "two")}
    if fault == "altered":
        tensors = rollout / "rollout.safetensors"
        raw = tensors.read_bytes()
        tensors.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
        with pytest.raises(UserError, match="damaged: its bytes are not those the manifest names"):
            gated(**go_on, job="three")
        assert not (tmp_path / "three" / "rollout").exists()
        return
    shutil.rmtree(rollout)
    if fault == "another":
        manifest = json.loads((whole / "manifest.json").read_text())
        rollout.mkdir()
        (rollout / "manifest.json").write_text(json.dumps(manifest | {"notes": ["another"]}))
    job, named = tmp_path / "two", tmp_path / "two" / "gate"
    with pytest.raises(UserError) as raised:
        gated(**go_on, job="three", stored=str(named))
    assert raised.value.thing == str(named)
    wanted = first.made_from["rollout"][:12]
    assert raised.value.reason == (
        f"its rollout (sha256 {wanted}) is not beside it: no artifact in {job} has this digest, nor is it {named}"
    )
    result, _ = gated(**go_on, job="four", stored=str(whole))
    assert result.exit_code == 0, "named, and its digest is the one"


def test_a_piece_without_what_the_experiment_requires_is_not_green_until_a_later_one_has_it(
    gated: Callable[..., Any], tmp_path: Path
) -> None:
    required = {"gate": {"require": ("repeat", "trainer_rollout")}}
    first, one = gated(**required, axes=("repeat",), job="one")
    assert {axis.name: axis.outcome.status for axis in one.axes} == {"repeat": "exact", "trainer_rollout": "not_run"}
    assert (one.verdict.kind, first.exit_code) == ("unjudged", 2)
    assert first.next == f"the axes that are left: samebits gate --resume {tmp_path / 'one'}"
    second, _ = gated(**required, axes=("trainer_rollout",), resume=str(tmp_path / "one"), job="two")
    assert second.exit_code == 0


def test_a_red_axis_stays_red_in_every_later_piece(gated: Callable[..., Any], tmp_path: Path) -> None:
    fault = {"trainer": {"options": {"fault": "company"}}}
    gated(**fault, axes=("micro_batch",), job="one")
    result, report = gated(**fault, axes=("micro_batch", "repeat"), resume=str(tmp_path / "one"), job="two")
    assert (report.verdict.kind, result.exit_code) == ("red", 1)


@pytest.mark.parametrize("changed", [{"trainer": {"micro_batch": 3}}, {"rollout": {"env": {"VLLM_X": "1"}}}])
def test_a_piece_about_something_else_is_refused(gated: Callable[..., Any], tmp_path: Path, changed: Any) -> None:
    gated(axes=("repeat",), job="one")
    with pytest.raises(UserError, match="is about something else"):
        gated(**changed, axes=("repeat",), resume=str(tmp_path / "one"), job="two")


def test_a_key_or_a_place_in_the_settings_makes_no_other_subject(gated: Callable[..., Any], tmp_path: Path) -> None:
    gated(axes=("repeat",), job="one", rollout={"env": {"VLLM_API_KEY": "1", "VLLM_CACHE_ROOT": "a"}})
    later = {"VLLM_API_KEY": "2", "VLLM_CACHE_ROOT": "b"}
    result, _ = gated(axes=("repeat",), job="two", resume=str(tmp_path / "one"), rollout={"env": later})
    assert result.exit_code == 0


def test_a_piece_whose_bytes_or_rollout_are_not_those_it_names_is_refused(
    gated: Callable[..., Any], tmp_path: Path
) -> None:
    gated(axes=("repeat",), job="one")
    (tmp_path / "one" / "rollout" / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match="is not beside it"):
        gated(axes=("repeat",), resume=str(tmp_path / "one"), job="two")
    manifest = tmp_path / "one" / "gate" / "manifest.json"
    raw = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(raw | {"schema_version": 0}))
    with pytest.raises(UserError, match="schema version 0"):
        gated(axes=("repeat",), resume=str(tmp_path / "one"), job="three")
    (tmp_path / "one" / "gate" / "junit.xml").write_text("")
    manifest.write_text(json.dumps(raw))
    with pytest.raises(UserError, match="damaged"):
        gated(axes=("repeat",), resume=str(tmp_path / "one"), job="four")


def test_an_axis_that_runs_out_of_time_has_no_verdict_and_the_next_one_runs(
    gated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(bench: Any, _tried: Any) -> None:
        assert bench.sides.job.deadline.left() is not None
        raise OutOfTime("the trainer side was still at work")

    monkeypatch.setitem(verb.TRAINER, "micro_batch", hangs)
    result, report = gated(axes=("micro_batch", "trainer_rollout"), gate={"axis_limit_s": 7})
    assert [axis.outcome.status for axis in report.axes] == ["timed_out", "exact"]
    assert (report.verdict.kind, result.exit_code) == ("unjudged", 2)
    assert "micro_batch: timed out after 7 s" in result.summary


def test_an_axis_whose_side_ends_has_no_verdict_and_the_next_one_runs(
    gated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ends(_bench: Any, _tried: Any) -> None:
        raise SideDied("trainer", "was killed by signal 9", tmp_path / "log")

    monkeypatch.setitem(verb.TRAINER, "micro_batch", ends)
    result, report = gated(axes=("micro_batch", "trainer_rollout"))
    assert [axis.outcome.status for axis in report.axes] == ["broke", "exact"]
    assert (report.verdict.kind, result.exit_code) == ("unjudged", 2)
    assert "killed by signal 9" in result.summary


@pytest.mark.parametrize("differs", [True, False])
@pytest.mark.parametrize("end", ["time", "death", "refusal"])
def test_a_difference_seen_before_an_axis_ends_is_red(
    gated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str, differs: bool
) -> None:
    real, ends = (
        TorchSide.score,
        {
            "time": OutOfTime("still at work"),
            "death": SideDied("trainer", "was killed by signal 9", tmp_path / "log"),
            "refusal": UserError("micro batch 8", "does not fit", "use another"),
        },
    )

    def score(self: Any, data: Any, how: Any, *rest: Any) -> Scores:
        if self.role == "trainer" and how.concurrency == 8:
            raise ends[end]
        scores = real(self, data, how, *rest)
        if self.role == "trainer" and how.concurrency == 2 and differs:
            scores.logprob_N.view(torch.int32)[0] += 1
        return scores

    monkeypatch.setattr(TorchSide, "score", score)
    result, report = gated(axes=("micro_batch",))
    found = report.axes[0].outcome
    if differs:
        assert (found.status, found.stats.nonzero, result.exit_code) == ("differs", 1, 1)
    else:
        assert found.status == {"time": "timed_out", "death": "broke", "refusal": "not_run"}[end]
        assert result.exit_code == 2


def test_trainer_rollout_says_what_it_did_not_compare_in_pieces(gated: Callable[..., Any]) -> None:
    _, whole = gated(axes=("reload", "lengths", "trainer_rollout"), job="whole")
    assert (len(whole.axes[-1].compared), whole.axes[-1].skipped) == (3, ())
    for axes, missing in ((("trainer_rollout",), ("reload", "lengths")), (("reload", "trainer_rollout"), ("lengths",))):
        _, piece = gated(axes=axes, job="-".join(axes))
        said = piece.axes[-1].skipped
        assert len(said) == len(missing) == 3 - len(piece.axes[-1].compared)
        assert all(f"the axis {name} left no scores" in line for name, line in zip(missing, said, strict=True))


def test_a_side_that_does_not_answer_is_ended_at_the_deadline(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text("import time\ntime.sleep(600)\n")
    experiment = Experiment.model_validate(
        {
            "trainer": {
                "side": "python:sleeper:factory",
                "model": str(tmp_path),
                "env": {"PYTHONPATH": str(tmp_path)},
            }
        }
    )
    deadline, begun = Deadline(time.monotonic() + 2), time.monotonic()
    with pytest.raises(OutOfTime):
        Session.start("trainer", experiment, "cpu", tmp_path, deadline=deadline)
    assert time.monotonic() - begun < 500, "the side was waited for"


def test_the_deadline_of_a_job_is_that_of_its_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Deadline] = []
    monkeypatch.undo()
    monkeypatch.setattr(Session, "start", lambda *_, **given: seen.append(given["deadline"]))
    job = Job(tmp_path)
    job.open_side("trainer", Experiment(device="cpu"))
    assert len(seen) == 1
    assert seen[0] is job.deadline


def rates(own: tuple[float, ...], stock: tuple[float, ...], required: bool = False) -> Throughput:
    return Throughput(
        own=Rate(what="own", runs=own), stock=Rate(what="stock", runs=stock), bar=0.7, required=required, seconds=1.0
    )


@pytest.mark.parametrize(
    ("own", "verdict", "reasons"),
    [
        ((80.0, 81.0, 82.0), "above", 0),
        ((60.0, 61.0, 62.0), "below", 1),
        ((60.0, 75.0, 90.0), "unclear", 0),
    ],
)
def test_throughput_is_judged_beyond_the_noise_alone(own: tuple[float, ...], verdict: str, reasons: int) -> None:
    measured = rates(own, (99.0, 100.0, 101.0))
    assert measured.verdict == verdict
    assert len(judge.slow(measured)) == reasons


def test_required_throughput_that_is_not_told_apart_from_the_bar_proves_nothing() -> None:
    (reason,) = judge.slow(rates((60.0, 90.0), (100.0, 100.0), required=True))
    assert "the noise of this machine reaches over the bar of 0.70" in reason
    (reason,) = judge.slow(NoThroughput(reason="no engine", required=True))
    assert "required, but not measured: no engine" in reason
    assert judge.slow(NoThroughput(reason="no engine")) == []


def test_a_slow_engine_is_not_green(gated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "own", lambda *_: Rate(what="own", runs=(10.0, 11.0)))
    monkeypatch.setattr(speed, "throughput", lambda *_: rates((10.0, 11.0), (100.0, 101.0)))
    result, report = gated(axes=("repeat", "throughput"))
    assert report.axes[0].outcome.status == "exact"
    assert (report.verdict.kind, result.exit_code) == ("unjudged", 2)
    assert "the bar is 0.70" in result.summary


@pytest.mark.parametrize(
    ("device", "gate", "named", "bar"),
    [
        ("cuda", {}, False, 0.7),
        ("cpu", {}, False, None),
        ("cpu", {}, True, 0.7),
        ("cpu", {"min_throughput": 0.7}, False, 0.7),
        ("cpu", {"min_throughput": 0.05}, True, 0.05),
        ("cuda", {"min_throughput": 0}, True, 0.0),
    ],
)
def test_the_bar_holds_by_itself_on_a_gpu_and_where_it_is_asked_for(
    device: str, gate: dict[str, float], named: bool, bar: float | None
) -> None:
    experiment = Experiment.model_validate({"device": device, "gate": gate})
    again = Experiment.model_validate_json(experiment.model_dump_json())
    assert speed.wanted(again, named, False).bar == bar


def test_a_cpu_engine_is_timed_only_for_whom_asks() -> None:
    asked = {"side": "vllm", "eager": True, "env": {"VLLM_CPU_ATTN_SPLIT_KV": "0"}}
    experiment = Experiment.model_validate({"device": "cpu", "rollout": asked})
    bench: Any = SimpleNamespace(
        sides=SimpleNamespace(experiment=experiment, job=SimpleNamespace(emit=lambda *_: None), session=None),
        source=SimpleNamespace(engine="vllm"),
    )
    found = speed.own(bench, speed.wanted(experiment, named=False, required=False))
    assert isinstance(found, NoThroughput)
    assert "only where it is asked for" in found.reason
    with pytest.raises(TypeError, match="not callable"):  # an engine is asked for
        speed.own(bench, speed.wanted(experiment, named=True, required=False))


@pytest.mark.parametrize(
    ("given", "bar"),
    [
        ({}, None),
        ({"gate": {"axes": ("repeat", "throughput")}}, 0.7),
        ({"axes": ("repeat", "throughput")}, 0.7),
        ({"require": ("throughput",)}, 0.7),
        ({"gate": {"min_throughput": 0.5}}, 0.5),
    ],
)
def test_asking_is_naming_it_or_setting_its_bar(
    gated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], bar: float | None
) -> None:
    seen: list[float | None] = []

    def own(_: object, asked: speed.Wanted) -> NoThroughput:
        seen.append(asked.bar)
        return NoThroughput(reason="here", required=asked.required)

    monkeypatch.setattr(speed, "own", own)
    monkeypatch.setattr(verb, "ENGINE", {"repeat": verb.ENGINE["repeat"]})
    monkeypatch.setattr(verb, "TRAINER", {})
    result, _ = gated(**given)
    assert seen == [bar]
    assert result.exit_code == (2 if "require" in given else 0)


def test_the_stock_engine_has_nothing_of_samebits() -> None:
    config = Rollout(
        eager=True, env={"VLLM_CPU_ATTN_SPLIT_KV": "0", "OMP_NUM_THREADS": "1"}, engine={"max_num_seqs": 8}
    )
    made = speed.stock(config, "cpu")
    assert (made.eager, made.env, made.engine, made.kernels) == (
        False,
        {"OMP_NUM_THREADS": "1"},
        {"max_num_seqs": 8},
        "none",
    )


def test_a_lock_without_trainer_rollout_says_that_the_sides_were_not_compared(
    gated: Callable[..., Any], tmp_path: Path
) -> None:
    said = "Not proved: that trainer and rollout agree (trainer_rollout)."
    for job, axes, agree in (("one", ("repeat", "trainer_repeat"), False), ("two", ("trainer_rollout",), True)):
        result, _ = gated(axes=axes, job=job)
        lock = Lock.model_validate_json((tmp_path / job / result.ids["lock"]).read_text())
        assert (result.exit_code, said in result.summary) == (0, not agree)
        assert set(lock.axes) == set(axes)
        assert ("trainer_rollout" in lock.not_proved) == (not agree)
        assert {*lock.axes, *lock.not_proved} == set(verb.names()), "each axis is one or the other"


def test_a_lock_counts_the_tokens_of_the_smallest_way_and_the_table_those_of_all_ways(
    gated: Callable[..., Any], tmp_path: Path
) -> None:
    result, report = gated(axes=("repeat",))
    counts = [way.stats.tokens for way in report.axes[0].compared]
    assert counts == [30, 30]
    lock = Lock.model_validate_json((tmp_path / result.ids["lock"]).read_text())
    assert (lock.axes["repeat"], result.rows[0]["tokens"]) == (min(counts), sum(counts))


def test_a_side_that_was_not_asked_proves_nothing(gated: Callable[..., Any], tmp_path: Path) -> None:
    result, _ = gated(axes=("repeat",))
    lock = Lock.model_validate_json((tmp_path / result.ids["lock"]).read_text())
    assert set(lock.proved) == {"rollout"}
    assert {"contract", "kernels_digest", "torch", "cpu"} <= set(lock.proved["rollout"])


def test_the_adapters_take_the_lock_of_a_green_gate_and_refuse_it_elsewhere(
    gated: Callable[..., Any], tmp_path: Path
) -> None:
    from samebits.kernels.adapters.errors import PatchError
    from samebits.kernels.adapters.setup import proved

    result, _ = gated(axes=("repeat", "trainer_rollout"))
    path = tmp_path / result.ids["lock"]
    asked = {"kernels": "none", "dtype": "float32"}
    # The lock was made in processes with the sides' own environment.
    held = json.loads(path.read_text())
    held["proved"]["trainer"] = proved.fingerprint("trainer")
    path.write_text(json.dumps(held))
    assert proved.compare("trainer", asked, path, False).proved
    with pytest.raises(PatchError, match="kernels: proved none, now vllm"):
        proved.compare("trainer", asked | {"kernels": "vllm"}, path, False)


def test_the_gates_environment_is_that_of_the_public_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from samebits.kernels.adapters.setup import proved, settings
    from samebits.tools.gate.regression import subject
    from samebits.tools.sides.tiny_experiment import experiment_for

    for name in [name for name in os.environ if name.startswith(("VLLM_", "ONEDNN_"))]:  # importing vllm sets some
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delitem(sys.modules, "vllm", raising=False)  # another test of this process may have imported it
    gate = subject.fingerprints(experiment_for(tmp_path, "cpu", settings.STEADY, kernels="vllm"))
    own = {"OMP_NUM_THREADS": "1"}
    settings.put(settings.find("cpu", "vllm")[2], own)
    for role in ("rollout", "trainer"):
        assert gate[role] == proved.fingerprint(role, own)
        assert gate[role] != proved.fingerprint(role, own | {"ONEDNN_MAX_CPU_ISA": "AVX2"})


def test_a_layout_that_changes_bits_is_red(gated: Callable[..., Any]) -> None:
    result, report = gated(trainer={"options": {"fault": "company"}, "micro_batch": 4}, axes=("layout",))
    assert report.axes[0].outcome.status == "differs"
    assert result.exit_code == 1
    assert trainer_axes.LAYOUTS == ("single", "padded", "packed")
