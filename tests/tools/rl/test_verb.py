"""What the verb refuses before a process is started, and the verdict it draws from what the arms saw."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from samebits.tools.job.job import Job
from samebits.tools.rl import verb
from samebits.tools.rl.child import ENDED, LOOP
from samebits.tools.schema.artifacts.gap import GapStats
from samebits.tools.schema.artifacts.rl import Broken, Done, Ended, Refused, Run, StepLine
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Experiment, Rl
from samebits.tools.schema.requests import RlRequest
from samebits.tools.sides.session import SideDied


def request(what: str = "train", resume: str = "", **sections: Any) -> RlRequest:
    experiment = Experiment.model_validate({"device": "cpu", **sections})
    return RlRequest.model_validate({"experiment": experiment, "what": what, "resume": resume})


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (request(workload={"temperature": 0}), "samples from the whole distribution"),
        (request(workload={"top_p": 0.9}), "samples from the whole distribution"),
        (request(rollout={"side": "transformers"}), "the loop runs vLLM against transformers"),
        (request(rl={"arms": ("exact", "exact")}), "each arm at most once"),
        (request("stale", rl={"lags": ()}), "at least one"),
        (request("stale", rl={"correction": "centering"}), "one update per batch"),
        (request(rl={"correction": "centering", "lag": 1}), "one update per batch"),
        (request(resume="/nowhere"), "no job of samebits rl"),
        (request("corrections", rl={"shape": "0.6b"}), "would hold 49 GiB of gradients on the CPU"),
        (request("corrections", rl={"shape": "1.7b"}), "would hold 139 GiB of gradients on the CPU"),
    ],
)
def test_bad_input_starts_nothing(tmp_path: Path, asked: RlRequest, said: str) -> None:
    with pytest.raises(UserError, match=said):
        verb.run_rl(asked, Job(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("rate", math.inf, "finite number"),
        ("rate", math.nan, "finite number"),
        ("rate", 1e7, "less than or equal to 1000000"),
        ("warmup_rate", math.inf, "finite number"),
        ("warmup_rate", math.nan, "finite number"),
        ("clip", math.nan, "greater than 0"),
        ("cap", math.nan, "greater than 0"),
        ("delta", math.nan, "greater than 0"),
        ("band", (2.0, 0.5), "0 <= low <= high"),
        ("band", (math.nan, 2.0), "0 <= low <= high"),
        ("geometric_band", (1.01, 0.99), "0 <= low <= high"),
        ("geometric_band", (-0.5, 1.0), "0 <= low <= high"),
    ],
)
def test_settings_without_a_meaning_are_refused_by_the_schema(name: str, value: Any, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Rl.model_validate({name: value})


def test_a_limit_that_nothing_reaches_is_a_setting_and_survives_the_way_to_the_child() -> None:
    given = Rl(clip=math.inf, cap=math.inf, delta=math.inf, band=(0.0, math.inf))
    assert Rl.model_validate_json(given.model_dump_json()) == given


def test_a_small_model_may_be_compared_and_a_large_folder_not(tmp_path: Path) -> None:
    verb.check_size(request("corrections").experiment)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(300_000_000)
    given = request("corrections", rollout={"model": str(tmp_path)}, rl={"shape": "1.7b"}).experiment
    verb.check_size(given)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(500_000_000)
    with pytest.raises(UserError, match=r"0\.25e9 parameters"):
        verb.check_size(given)


def test_stale_batches_get_importance_weights_where_none_are_named() -> None:
    assert verb._given(request("stale")).rl.correction == "is"
    assert verb._given(request("stale", rl={"correction": "tis"})).rl.correction == "tis"
    assert verb._given(request()).rl.correction == "none"


def test_only_the_same_experiment_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text(request().model_dump_json())
    resume = str(tmp_path)
    same = request(resume=resume, pool={"time_limit_s": 60})
    assert verb._earlier(same) == tmp_path, "the pool may change"
    for other in (request(resume=resume, rl={"rate": 0.5}), request("stale", resume=resume)):
        with pytest.raises(UserError, match="a run of another experiment"):
            verb._earlier(other)
    (tmp_path / "request.json").write_text("{")
    with pytest.raises(UserError, match="no job of samebits rl"):
        verb._earlier(same)


def test_an_arm_that_ended_is_taken_over_and_one_that_did_not_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arm in ("stock", "exact"):
        (tmp_path / "before" / arm).mkdir(parents=True)
    (tmp_path / "before/stock" / ENDED).write_text(Ended(how=Done()).model_dump_json())
    (tmp_path / "before/stock/lag-0").mkdir()
    (tmp_path / "before/stock/lag-0" / LOOP).write_text(json.dumps({"not_exact": "", "resumed_at": None}))
    (tmp_path / "now").mkdir()
    asked = request()
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(verb.Work, "child", lambda _self, part, name, **more: started.append(more) or Path(name))
    work = verb.Work(asked, asked.experiment, Job(tmp_path / "now"), "cpu", "vllm", tmp_path / "before")
    assert verb._arm(work, "stock", (0,), tmp_path) == tmp_path / "now/stock"
    assert (tmp_path / "now/stock" / ENDED).is_file()
    assert started == []
    verb._arm(work, "exact", (0,), tmp_path)
    assert [more["earlier"] for more in started] == [str(tmp_path / "before/exact")]


@pytest.mark.parametrize(("unfinished", "again"), [(True, 1), (False, 0)])
def test_an_arm_whose_time_was_over_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unfinished: bool, again: int
) -> None:
    lag = tmp_path / "before/exact/lag-0"
    lag.mkdir(parents=True)
    (tmp_path / "before/exact" / ENDED).write_text(Ended(how=Done()).model_dump_json())
    (lag / LOOP).write_text(json.dumps({"not_exact": "", "resumed_at": None, "unfinished": unfinished}))
    (tmp_path / "now").mkdir()
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(verb.Work, "child", lambda _self, part, name, **more: started.append(more) or Path(name))
    work = verb.Work(request(), request().experiment, Job(tmp_path / "now"), "cpu", "vllm", tmp_path / "before")
    verb._arm(work, "exact", (0,), tmp_path, 5.0)
    assert len(started) == again
    assert all((more["earlier"], more["ends"]) == (str(tmp_path / "before/exact"), 5.0) for more in started)


def test_each_arm_gets_its_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb.time, "time", lambda: 1000.0)
    work = verb.Work(request(), request().experiment, Job(tmp_path), "cpu", "vllm", None, 1100.0)
    assert (work.share(2), work.share(1)) == (1050.0, 1100.0)
    work.ends = 0.0
    assert work.share(2) == 0.0, "no limit"


def test_how_a_child_ended_is_told_apart(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with pytest.raises(SideDied, match="exact side was killed by signal 9; go on from its last checkpoint"):
        verb._checked(tmp_path, "exact", -9, log)
    for how, kind, said in (
        (Refused(thing="digits", reason="too many", next_step="fewer"), UserError, "too many. Next: fewer; log"),
        (Broken(message="ValueError: x"), SideDied, "failed: ValueError: x"),
    ):
        (tmp_path / ENDED).write_text(Ended(how=how).model_dump_json())
        with pytest.raises(kind, match=said):
            verb._checked(tmp_path, "exact", 0, log)
    (tmp_path / ENDED).write_text(Ended(how=Done()).model_dump_json())
    assert verb._checked(tmp_path, "exact", 0, log) == tmp_path


def run(arm: str, nonzero: tuple[int, ...], not_exact: str = "") -> Run:
    lines = [
        StepLine(
            step=k,
            reward=0,
            solved=0,
            gap=GapStats(tokens=5, nonzero=n, nonfinite=0, max=0, mean=0, std=0, k3=0),
            gradient_norm=0,
            loss=0,
            entropy=0,
            tokens=5,
            version=k,
            staleness=GapStats(tokens=5, nonzero=n, nonfinite=0, max=0, mean=0, std=0, k3=0),
            mean_weight=1,
            effective=1,
            kept=1,
            seconds={},
            digest="",
        )
        for k, n in enumerate(nonzero)
    ]
    return Run.model_validate({"arm": arm, "lag": 0, "steps": lines, "not_exact": not_exact})


def test_the_verdict_is_that_of_the_exact_arm() -> None:
    stock, exact = run("stock", (3, 4)), run("exact", (0, 0))
    assert verb._verdict([stock, exact], 2) == ("equal", "the exact arm is exact at each of 2 steps (10 tokens)")
    assert verb._verdict([stock], 2)[0] == "done"
    verdict, words = verb._verdict([stock, run("exact", (0,), "1 of 5 differ")], 2)
    assert verdict == "differs"
    assert words == "the exact arm differs at step 1: 1 of 5 differ"
    early = run("exact", (0,)).model_copy(update={"unfinished": True})
    verdict, words = verb._verdict([early, stock], 2)
    assert verdict == "unjudged", "no verdict of steps that did not run"
    assert "exact 1 of 2, stock 2 of 2" in words
    for short in (run("exact", (0,)), run("exact", (0, 1))):
        with pytest.raises(AssertionError):
            verb._verdict([stock, short], 2)
