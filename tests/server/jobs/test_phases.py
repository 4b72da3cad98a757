"""Limits of single phases, and of the silence of a worker (its stand-in is that of conftest.py)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs import launch, warden
from samebits.tools.schema.experiment import Pool
from samebits.tools.schema.requests import MeasureRequest
from samebits.tools.schema.results import Failed, Succeeded, TimedOut

Asked = Callable[..., MeasureRequest]
pytestmark = pytest.mark.usefixtures("strays")


@pytest.fixture
def ended(asked: Asked, tmp_path: Path, eventually: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """ended(do, value, **pool): run the stand-in to its end; gives its outcome."""
    monkeypatch.setattr(launch, "GRACE_S", 0.5)

    def run(do: str, value: float = 0, more: dict[str, Any] | None = None, **pool: Any) -> Any:
        request = asked(do, value, more, **pool)
        folder = tmp_path / "jobs" / f"{do}-{len(list(tmp_path.glob('jobs/*')))}"
        running = launch.start(request, folder, python=request.experiment.pool.worker_python)
        eventually(lambda: running.outcome() is not None)
        return running.outcome()

    return run


def test_a_phase_over_its_own_time_ends_the_job_and_is_named(ended: Callable[..., Any]) -> None:
    outcome = ended("sleep", 60, phase_time_limit_s={"stand-in": 1, "open": 600})
    assert outcome == TimedOut(limit_s=1, phase="stand-in")
    assert outcome.words == "its phase 'stand-in' took over 1 s. Next: raise pool.phase_time_limit_s"


class Watch:
    """Stands in for the warden's `time`: moved on by the test."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    made = Watch()
    monkeypatch.setattr(warden, "time", made)
    return made


def test_each_phase_has_its_time_and_together_they_may_take_longer(watch: Watch, tmp_path: Path, asked: Asked) -> None:
    """Three phases of 0.7 s under 2 s each; then one that takes longer."""
    launch.prepare(asked("phases", phase_time_limit_s={"*": 2}), tmp_path / "one")
    spec = {"folder": str(tmp_path / "one"), "time_limit_s": 0.0, "memory_limit_bytes": 0, "grace_s": 0.0, "keep": []}
    watching = warden.Warden(spec)
    for phase in ("open", "capture", "open", "score"):
        with (tmp_path / "one" / "events.jsonl").open("a") as file:
            file.write(json.dumps({"time": 0, "phase": phase, "message": "working"}) + "\n")
        assert watching.over_limit() == ""
        watch.now += 0.7
        assert watching.over_limit() == ""
    watch.now += 1.4
    assert watching.over_limit() == "time_limit"
    assert watching.passed == ("score", 2)
    watching.log.file.close()


def test_the_limit_of_every_other_phase_ends_the_job_and_phases_within_it_do_not(ended: Callable[..., Any]) -> None:
    assert isinstance(ended("phases", 0, phase_time_limit_s={"*": 100}), Succeeded)
    assert ended("sleep", 60, phase_time_limit_s={"open": 600, "*": 1}) == TimedOut(limit_s=1, phase="stand-in")


def test_a_phase_over_its_own_memory_ends_the_job_and_is_named(ended: Callable[..., Any]) -> None:
    outcome = ended("phases", 200, {"stay": "capture"}, phase_memory_limit_mib={"capture": 100})
    assert isinstance(outcome, Failed)
    assert "pool.phase_memory_limit_mib allows in phase 'capture'" in outcome.message
    assert isinstance(ended("phases", 200, phase_memory_limit_mib={"capture": 2000, "prove": 1}), Succeeded)


def test_a_silent_worker_is_ended_where_that_is_asked_for_and_named(ended: Callable[..., Any]) -> None:
    outcome = ended("silent", 60, heartbeat_limit_s=1)
    assert isinstance(outcome, Failed)
    assert "no heartbeat for 1 s (pool.heartbeat_limit_s) in phase 'stand-in', hangs, and was ended" in outcome.message
    assert isinstance(ended("silent", 1.5, heartbeat_limit_s=0), Succeeded)
    assert isinstance(ended("sleep", 1.5, heartbeat_limit_s=1), Succeeded), "one that has not begun is not silent"


def test_a_clock_that_jumps_is_no_silence_and_a_request_without_pool_has_the_default(
    watch: Watch, tmp_path: Path
) -> None:
    phases, beat = warden.Phases(tmp_path), tmp_path / "heartbeat"
    assert phases.silence_s == Pool().heartbeat_limit_s == 600
    assert not phases.is_silent(), "it has not begun"
    for moment in (10**9, 10**9 + 2, 1):  # years ago: the clock was set, or the machine slept
        beat.touch()
        os.utime(beat, (moment, moment))
        watch.now += 1000
        assert not phases.is_silent()
        watch.now += 600
        assert not phases.is_silent()
    watch.now += 1
    assert phases.is_silent(), "the control: nothing new for longer than allowed"


def test_silence_is_said_while_a_job_runs(tmp_path: Path) -> None:
    (tmp_path / "heartbeat").touch()
    assert job_folder.silent_s(tmp_path) == 0
    old = time.time() - 100
    os.utime(tmp_path / "heartbeat", (old, old))
    assert 99 < job_folder.silent_s(tmp_path) < time.time() - old + 1
    assert job_folder.silent_s(tmp_path / "nothing") == 0


def test_limits_that_cannot_be_are_refused(asked: Asked) -> None:
    for pool in (
        {"phase_time_limit_s": {"open": 0}},
        {"phase_memory_limit_mib": {"open": -1}},
        {"heartbeat_limit_s": -1},
    ):
        with pytest.raises(ValueError, match="greater than or equal"):
            asked("sleep", 0, **pool)
    assert json.loads(asked("sleep", phase_time_limit_s={"*": 5}).model_dump_json())["experiment"]["pool"][
        "phase_time_limit_s"
    ] == {"*": 5}
