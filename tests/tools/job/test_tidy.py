"""What a job that fails or is stopped leaves behind, through the real worker and the real process of a side."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from samebits.tools.job.tidy import tidy

if TYPE_CHECKING:
    from collections.abc import Callable


def asked(folder: Path, kind: str, experiment: dict[str, Any]) -> None:
    folder.mkdir()
    (folder / "request.json").write_text(json.dumps({"kind": kind, "experiment": experiment}), encoding="utf-8")


PATIENT = (
    "-c",
    "from samebits.tools.sides import session; session.STOP_AFTER_S = 500; from samebits.tools import worker; "
    "worker.main()",
)
"""The worker, which would wait so long for a side to close by itself."""


def worker(folder: Path, how: tuple[str, str] = ("-m", "samebits.tools.worker"), **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *how, str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | env,
        start_new_session=True,
    )


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_is_stopped_while_a_side_is_deaf_ends_at_once_with_its_sides(
    number: int, models: Callable[..., Path], tmp_path: Path
) -> None:
    """The side sleeps for ten minutes inside a command, so it cannot hear that it should close."""
    model, mark = models(), tmp_path / "mark"
    (tmp_path / "deaf_side.py").write_text(
        f"import pathlib, time\n\ndef factory(model, dtype, device):\n"
        f"    pathlib.Path({str(mark)!r}).touch()\n    time.sleep(600)\n"
    )
    rollout = {"side": "transformers", "model": str(model), "dtype": "float32"}
    job = tmp_path / "job"
    asked(
        job,
        "diff",
        {
            "device": "cpu",
            "rollout": rollout,
            "trainer": {"side": "python:deaf_side:factory", "model": str(model)},
            "workload": {"prompts": 2, "prompt_tokens": [3, 5], "new_tokens": 2},
        },
    )
    process = worker(job, PATIENT, PYTHONPATH=str(tmp_path))
    try:
        until = time.monotonic() + 500
        while not mark.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        assert mark.exists(), "the trainer side never began to load"
        os.kill(process.pid, number)
        process.wait(300)  # waiting for the side to close by itself would take longer
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert json.loads((job / "result.json").read_text(encoding="utf-8"))["state"] == "cancelled"
    until = time.monotonic() + 120
    while alive(process.pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert not alive(process.pid), "a process of the job's group outlived it"


def test_a_failed_job_leaves_its_record_its_logs_and_whole_artifacts(
    models: Callable[..., Path], tmp_path: Path
) -> None:
    """The rollout is made, then the trainer's weights prove to be of another size than its config.json says."""
    job, broken = tmp_path / "job", Path(shutil.copytree(models(), tmp_path / "broken"))
    config = json.loads((broken / "config.json").read_text(encoding="utf-8"))
    (broken / "config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] + 8}), encoding="utf-8")
    asked(
        job,
        "diff",
        {
            "device": "cpu",
            "rollout": {"side": "transformers", "model": str(models()), "dtype": "float32"},
            "trainer": {"model": str(broken), "dtype": "float32"},
            "workload": {"prompts": 2, "prompt_tokens": [3, 5], "new_tokens": 2},
        },
    )
    assert worker(job).wait(600) == 0
    outcome = json.loads((job / "result.json").read_text(encoding="utf-8"))
    assert (outcome["state"], outcome["error"]) == ("failed", "user")
    kept = {path.name for path in job.iterdir()}
    assert kept - {"heartbeat"} == {"events.jsonl", "request.json", "result.json", "rollout", "sides"}
    assert (job / "rollout" / "manifest.json").is_file()
    assert outcome["message"].rpartition("log: ")[2] == str(job / "sides" / "trainer.log")
    assert (job / "sides" / "trainer.log").is_file()


def made(folder: Path, kind: str) -> Path:
    """A job folder with everything that a verb may leave on the way."""
    folder.mkdir()
    (folder / "request.json").write_text(json.dumps({"kind": kind}))
    for name in (
        "log.txt", "sides/rollout.log", "rollout/manifest.json", "rollout/rollout.safetensors",
        "passes/trainer-forced/capture/manifest.json", "passes/trainer-forced/scores.safetensors",
        "divergence.part/manifest.json", "scores-rollout/scores.safetensors", "model/config.json",
        "diff/sides/trainer.log", "diff/passes/trainer-plain/scores.safetensors", "exact/updated.safetensors",
    ):  # fmt: skip
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_only_logs_the_record_and_whole_artifacts_are_kept(tmp_path: Path) -> None:
    job = made(tmp_path / "job", "demo")
    tidy(job)
    assert files(job) == [
        "diff", "diff/sides", "diff/sides/trainer.log", "log.txt", "request.json", "rollout", "rollout/manifest.json",
        "rollout/rollout.safetensors", "sides", "sides/rollout.log",
    ]  # fmt: skip


def test_verbs_with_files_of_their_own_are_left_alone(tmp_path: Path) -> None:
    job = made(tmp_path / "job", "gate")
    before = files(job)
    tidy(job)
    assert files(job) == before
