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
from samebits.server.jobs import launch
from samebits.server.jobs.warden import Phases
from samebits.tools.schema.experiment import Pool
from samebits.tools.schema.requests import MeasureRequest
from samebits.tools.schema.results import Failed, Succeeded, TimedOut

Asked = Callable[..., MeasureRequest]
pytestmark = pytest.mark.usefixtures("strays")


@pytest.fixture
def ended(asked: Asked, tmp_path: Path, eventually: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """ended(do, value, **pool): run the stand-in to its end; gives its outcome."""
    monkeypatch.setattr(launch, "GRACE_S", 0.5)

    def run(do: str, value: float = 0, **pool: Any) -> Any:
        request = asked(do, value, **pool)
        folder = tmp_path / "jobs" / f"{do}-{len(list(tmp_path.glob('jobs/*')))}"
        running = launch.start(request, folder, python=request.experiment.pool.worker_python)
        eventually(lambda: running.outcome() is not None, 60)
        return running.outcome()

    return run


def test_a_phase_over_its_own_time_ends_the_job_and_is_named(ended: Callable[..., Any]) -> None:
    outcome = ended("sleep", 60, phase_time_limit_s={"stand-in": 1, "open": 600})
    assert outcome == TimedOut(limit_s=1, phase="stand-in")
    assert outcome.words == "its phase 'stand-in' took over 1 s. Next: raise pool.phase_time_limit_s"


def test_each_phase_has_its_time_and_together_they_may_take_longer(ended: Callable[..., Any]) -> None:
    """Three phases of 0.7 s under 2 s each; then as one of 60 s under the limit for any other."""
    assert isinstance(ended("phases", 0, phase_time_limit_s={"*": 2}), Succeeded)
    assert ended("sleep", 60, phase_time_limit_s={"open": 600, "*": 1}) == TimedOut(limit_s=1, phase="stand-in")


def test_a_phase_over_its_own_memory_ends_the_job_and_is_named(ended: Callable[..., Any]) -> None:
    outcome = ended("phases", 200, phase_memory_limit_mib={"capture": 100})
    assert isinstance(outcome, Failed)
    assert "pool.phase_memory_limit_mib allows in phase 'capture'" in outcome.message
    assert isinstance(ended("phases", 200, phase_memory_limit_mib={"capture": 2000, "prove": 1}), Succeeded)


def test_a_silent_worker_is_ended_where_that_is_asked_for_and_named(ended: Callable[..., Any]) -> None:
    outcome = ended("silent", 60, heartbeat_limit_s=1)
    assert isinstance(outcome, Failed)
    assert "no heartbeat for 1 s (pool.heartbeat_limit_s) in phase 'stand-in', hangs, and was ended" in outcome.message
    assert isinstance(ended("silent", 1.5, heartbeat_limit_s=0), Succeeded)
    assert isinstance(ended("sleep", 1.5, heartbeat_limit_s=1), Succeeded), "one that has not begun is not silent"


def test_a_clock_that_jumps_is_no_silence_and_a_request_without_pool_has_the_default(tmp_path: Path) -> None:
    phases, beat = Phases(tmp_path), tmp_path / "heartbeat"
    assert phases.silence_s == Pool().heartbeat_limit_s == 600
    phases.silence_s = 0.2
    assert not phases.is_silent(), "it has not begun"
    for moment in (10**9, 10**9 + 2, 1):  # years ago: the clock was set, or the machine slept
        beat.touch()
        os.utime(beat, (moment, moment))
        assert not phases.is_silent()
    time.sleep(0.3)
    assert phases.is_silent(), "the control: nothing new for longer than allowed"


def test_silence_is_said_while_a_job_runs(tmp_path: Path) -> None:
    (tmp_path / "heartbeat").touch()
    assert job_folder.silent_s(tmp_path) == 0
    old = time.time() - 100
    os.utime(tmp_path / "heartbeat", (old, old))
    assert 99 < job_folder.silent_s(tmp_path) < 110
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
