"""What a killed warden left behind is ended also where the job's folder is elsewhere."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from samebits.server.jobs import launch
from samebits.server.jobs.sweep import orphans, sweep
from samebits.tools.schema.requests import MeasureRequest


@pytest.mark.parametrize("linked", [True, False])
def test_orphans_of_a_job_with_a_folder_of_its_own_are_those_of_the_project_that_lists_it(
    linked: bool, asked: Callable[..., MeasureRequest], tmp_path: Path, strays: Any, eventually: Any, at_work: Any
) -> None:
    jobs, folder = tmp_path / "jobs", tmp_path / "elsewhere" / "mine"
    jobs.mkdir()
    running = launch.start(asked("daemon"), folder, python=asked("daemon").experiment.pool.worker_python)
    if linked:
        (jobs / "mine").symlink_to(folder)
    eventually(lambda: at_work(folder) and (folder / "daemon").exists())
    assert orphans(jobs) == [], "a watched job has no orphans"
    os.kill(json.loads((folder / "worker.json").read_text())["warden"], signal.SIGKILL)
    eventually(lambda: running.outcome() is not None)
    child = int((folder / "daemon").read_text())
    eventually(lambda: strays() == [child])
    assert sweep(jobs) == ([child] if linked else [])
    if not linked:
        os.kill(child, signal.SIGKILL)
    eventually(lambda: not strays())
