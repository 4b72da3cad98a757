"""What holds when the owner, the warden or the worker goes: nothing of the job is left, and its folder says so."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs import launch
from samebits.server.jobs.index import Index
from samebits.server.jobs.slots import Need, Slots
from samebits.server.jobs.sweep import orphans, sweep
from samebits.server.jobs.warden import memory_bytes, start_of
from samebits.tools.sandbox import processes
from samebits.tools.schema.requests import MeasureRequest

Asked = Callable[..., MeasureRequest]
START = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


class Serving:
    """A `samebits serve` process spoken to in raw lines, so that it can be killed in mid-call."""

    def __init__(self, project: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "samebits.server.cli.main", "serve"],
            cwd=project,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.say("initialize", START, id=1)
        assert self.process.stdout is not None
        assert b'"serverInfo"' in self.process.stdout.readline()
        self.say("notifications/initialized", {})

    def say(self, method: str, params: dict[str, Any], **more: Any) -> None:
        assert self.process.stdin is not None
        line = json.dumps({"jsonrpc": "2.0", "method": method, "params": params} | more)
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def measure(self, do: str) -> None:
        overrides = [f"rollout.engine.do={do}", "rollout.engine.value=600"]
        self.say("tools/call", {"name": "measure_gap", "arguments": {"overrides": overrides}}, id=2)

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        with suppress(BrokenPipeError):
            self.process.stdin.close()


def close_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


@pytest.mark.parametrize(
    ("ending", "do"),
    [
        (subprocess.Popen.terminate, "daemon"),
        (subprocess.Popen.kill, "daemon"),
        (subprocess.Popen.kill, "hang"),
        (close_input, "daemon"),
    ],
    ids=["TERM", "KILL", "KILL-in-native-code", "closed-stdin"],
)
def test_a_server_that_ends_in_mid_job_leaves_no_orphan_and_no_lost_job(
    ending: Callable[[subprocess.Popen[bytes]], None], do: str, project: Path, strays: Any, eventually: Any
) -> None:
    serving, jobs = Serving(project), project / ".samebits" / "jobs"
    try:
        serving.measure(do)
        eventually(lambda: list(jobs.glob("*/events.jsonl")))
        if do == "daemon":
            eventually(lambda: list(jobs.glob("*/daemon")))
        assert strays()
        ending(serving.process)
        serving.process.wait(100)
        eventually(lambda: not strays())
    finally:
        serving.end()
    assert [row.state for row in Index(jobs).rows()] == ["interrupted"]
    assert json.loads(next(jobs.glob("*/ended.json")).read_text())["how"] == "owner_gone"


def test_a_server_that_ends_with_a_queue_leaves_every_job_listed(project: Path, strays: Any, eventually: Any) -> None:
    serving, jobs = Serving(project), project / ".samebits" / "jobs"
    try:
        for _ in range(3):
            serving.measure("sleep")
        eventually(lambda: len(list(jobs.glob("*/request.json"))) == 3 and list(jobs.glob("*/events.jsonl")))
        serving.process.kill()
        eventually(lambda: not strays())
    finally:
        serving.end()
    assert [row.state for row in Index(jobs).rows()] == ["interrupted"] * 3


def test_a_killed_warden_takes_its_worker_along_and_the_sweep_takes_the_rest(
    asked: Asked, tmp_path: Path, strays: Any, eventually: Any, at_work: Any
) -> None:
    folder = tmp_path / "jobs" / "one"
    running = launch.start(asked("daemon"), folder, python=asked("daemon").experiment.pool.worker_python)
    eventually(lambda: at_work(folder) and (folder / "daemon").exists())
    assert orphans(tmp_path / "jobs") == [], "a watched job has no orphans"
    pids = json.loads((folder / "worker.json").read_text())
    os.kill(pids["warden"], signal.SIGKILL)
    eventually(lambda: running.outcome() is not None)
    outcome = running.outcome()
    assert outcome is not None
    assert "warden was killed" in outcome.message  # type: ignore[union-attr]
    eventually(lambda: strays() == [int((folder / "daemon").read_text())])
    assert sweep(tmp_path / "jobs") == [int((folder / "daemon").read_text())]
    eventually(lambda: not strays())


def test_the_command_lines_own_job_ends_with_it_too(project: Path, strays: Any, eventually: Any, at_work: Any) -> None:
    command = [sys.executable, "-m", "samebits.server.cli.main", "measure", "--set", "rollout.engine.do=daemon"]
    process = subprocess.Popen(command, cwd=project, stderr=subprocess.DEVNULL)
    jobs = project / ".samebits" / "jobs"
    eventually(lambda: [path for path in jobs.glob("*/daemon") if at_work(path.parent)])
    index = Index(jobs)
    assert [row.state for row in index.rows()] == ["running"], "it is on the list though no server began it"
    process.kill()
    process.wait()
    eventually(lambda: not strays())
    assert [row.state for row in index.rows()] == ["interrupted"]


def test_a_cancel_mark_ends_a_job_whoever_runs_it(asked: Asked, tmp_path: Path, strays: Any, eventually: Any) -> None:
    folder = tmp_path / "jobs" / "one"
    running = launch.start(asked("sleep", 600), folder, python=asked("sleep").experiment.pool.worker_python)
    eventually(lambda: (folder / "events.jsonl").exists())
    assert strays()
    job_folder.mark_cancelled(folder)
    eventually(lambda: running.outcome() is not None)
    assert running.outcome().state == "cancelled"  # type: ignore[union-attr]


def test_a_job_that_is_stopped_the_moment_it_was_started_was_stopped(
    asked: Asked, tmp_path: Path, strays: Any, eventually: Any
) -> None:
    """Its warden is still being started then."""
    running = launch.start(asked("sleep", 600), tmp_path / "one", python=asked("sleep").experiment.pool.worker_python)
    running.stop()
    assert running.outcome().state == "cancelled"  # type: ignore[union-attr]


def test_a_process_that_has_ended_is_gone_though_nobody_asked_how(eventually: Any) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        start = start_of(process.pid)
        assert job_folder.alive(process.pid, start)
        close_input(process)
        eventually(lambda: not job_folder.alive(process.pid, start))
        assert Path(f"/proc/{process.pid}").exists(), "the control: the kernel still keeps its number"


STUCK = """import sys
from samebits.server.jobs import warden
warden.KILL_WAIT_S = 0.2
warden.os.kill = lambda pid, number: None
warden.main()
"""


def test_a_process_that_no_signal_ends_keeps_the_slot_and_is_named(
    asked: Asked, tmp_path: Path, eventually: Any
) -> None:
    """A process that waits in a driver cannot be had here: the warden's own `kill` does nothing instead."""
    slots, folder = Slots(tmp_path / "locks", ("GPU-aaaa",)), tmp_path / "jobs" / "one"
    launch.prepare(asked("leave"), folder)
    held = slots.take(Need(gpus=1), "one", folder)
    assert held is not None
    spec = {
        "folder": str(folder),
        "command": [asked("leave").experiment.pool.worker_python, "-m", launch.WORKER, str(folder)],
        "keep": list(held.descriptors),
        "time_limit_s": 0.0,
        "memory_limit_bytes": 0,
        "grace_s": 1.0,
        "lifeline": False,
        "detach": False,
    }
    subprocess.run([sys.executable, "-c", STUCK, json.dumps(spec)], pass_fds=held.descriptors, check=True)
    held.close()
    ((pid, _),) = json.loads((folder / "ended.json").read_text())["stuck"]
    try:
        said = f"process {pid} of ended job one cannot be killed and holds GPU-aaaa"
        outcome = job_folder.outcome(folder)
        assert outcome.state == "succeeded"
        assert outcome.result.summary == f"done Mind: {said}."
        assert slots.take(Need(gpus=1), "two") is None
        assert slots.holder(Need(gpus=1)) == said
    finally:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: slots.take(Need(gpus=1), "two") is not None)
    assert job_folder.outcome(folder).result.summary == "done"  # type: ignore[union-attr]


@pytest.mark.parametrize("do", ["memory", "shm"])
def test_the_warden_counts_memory_as_the_sandbox_does(do: str, asked: Asked, tmp_path: Path, eventually: Any) -> None:
    folder = tmp_path / "jobs" / "one"
    running = launch.start(asked(do, 100), folder, python=asked(do).experiment.pool.worker_python)
    eventually(lambda: (folder / "worker.json").exists())
    pid = json.loads((folder / "worker.json").read_text())["worker"]
    try:
        eventually(lambda: memory_bytes([pid]) >= 100 << 20)
        os.kill(pid, signal.SIGSTOP)  # it still grows: between the two readings it must not
        eventually(lambda: is_stopped(pid))
        eventually(lambda: as_the_sandbox_does(pid))
    finally:
        os.kill(pid, signal.SIGCONT)
        running.stop()


def as_the_sandbox_does(pid: int) -> bool:
    """Whether both read the same; False where it changed meanwhile (the kernel may take pages from what rests)."""
    first, theirs, last = memory_bytes([pid]), processes.memory_bytes({pid}), memory_bytes([pid])
    assert first != last or theirs == first
    return first == last


def is_stopped(pid: int) -> bool:
    """Whether no thread of it runs any more."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


STAGES = {
    "asked": ("sleep", ""),
    "written": ("sleep", "*/request.json"),
    "started": ("sleep", "*/worker.json"),
    "working": ("sleep", "*/events.jsonl"),
    "answered": ("env", "*/result.json"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_server_killed_at_any_stage_leaves_a_job_that_is_whole_or_interrupted(
    stage: str, project: Path, strays: Any, eventually: Any
) -> None:
    do, mark = STAGES[stage]
    serving, jobs = Serving(project), project / ".samebits" / "jobs"
    try:
        if stage == "asked":
            serving.process.send_signal(signal.SIGSTOP)  # it is killed before it has read the call
        serving.measure(do)
        if mark:
            eventually(lambda: list(jobs.glob(mark)))
        serving.process.kill()
        serving.process.wait()
        # A warden that was just being started may still come up: it finds that its owner is gone.
        due = {"succeeded"} if stage == "answered" else {"interrupted"}
        index = Index(jobs)
        eventually(lambda: not strays() and {row.state for row in index.rows()} <= due)
    finally:
        serving.end()
    rows = index.rows()
    assert {row.id for row in rows} == {path.parent.name for path in jobs.glob("*/request.json")}
    assert len(rows) == (stage != "asked")
    assert len([path for path in jobs.iterdir() if path.is_dir()]) == len(rows), "no folder without its job"
    assert {row.state for row in rows} <= due, "nothing half-made counts, nothing that is whole is lost"


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["open", "rollout", "axes"])
def test_a_server_killed_in_a_real_measure_leaves_no_side_and_nothing_half_made(
    phase: str, project: Path, strays: Any, eventually: Any
) -> None:
    """Worker and sides are the real ones: transformers on both sides."""
    from samebits.tools.sides.transformers.tiny import write_tiny

    write_tiny(project / "model", dtype="float32", num_hidden_layers=1)
    (project / "samebits.toml").write_text(
        'device = "cpu"\n[rollout]\nside = "transformers"\nmodel = "model"\ndtype = "float32"\n'
        '[trainer]\ndtype = "float32"\n[workload]\nprompts = 3\nprompt_tokens = [3, 12]\nnew_tokens = 6\n'
    )
    serving, jobs = Serving(project), project / ".samebits" / "jobs"
    try:
        serving.say("tools/call", {"name": "measure_gap", "arguments": {}}, id=2)
        begun = f'"phase":"{phase}"'
        eventually(lambda: any(begun in path.read_text() for path in jobs.glob("*/events.jsonl")), 300)
        if phase != "open":
            assert len(strays()) >= 3, "warden, worker and a side"
        serving.process.kill()
        serving.process.wait()
        eventually(lambda: not strays())
    finally:
        serving.end()
    ((job, state),) = [(row.id, row.state) for row in Index(jobs).rows()]
    assert state == "interrupted"
    assert not (jobs / job / "result.json").exists() or "succeeded" not in (jobs / job / "result.json").read_text()
    made = [
        path for path in (jobs / job).iterdir() if path.is_dir() and path.name != "sides" and path.suffix != ".part"
    ]
    for folder in made:
        for name, digest in json.loads((folder / "manifest.json").read_text())["files"].items():
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, f"{folder}/{name} is not whole"
    assert ("rollout" in {path.name for path in made}) == (phase == "axes"), (
        "the control: what was whole by then is there"
    )


FULL = """import sys, time
from pathlib import Path
from samebits.server.jobs import launch
from samebits.tools.schema.requests import REQUEST
request = REQUEST.validate_json(Path(sys.argv[1]).read_bytes())
running = launch.start(request, Path(sys.argv[2], "one"), python=request.experiment.pool.worker_python)
while running.outcome() is None:
    time.sleep(0.05)
print(running.outcome().model_dump_json())
"""


@pytest.mark.parametrize("do", ["full", "sleep"])
def test_a_disk_that_fills_up_under_a_job_is_one_clear_failure(
    do: str, asked: Asked, tmp_path: Path, small_disk: Callable[..., str]
) -> None:
    """The job's folder is on a real file system of 256 KiB; `sleep` is the control that has room there."""
    request = tmp_path / "request.json"
    request.write_text(asked(do).model_dump_json())
    outcome = json.loads(small_disk(256, sys.executable, "-c", FULL, str(request), str(tmp_path / "disk")))
    if do == "sleep":
        assert outcome["state"] == "succeeded"
    else:
        assert (outcome["state"], outcome["error"]) == ("failed", "resource")
        assert "is full, so the worker could not answer. Next: make room" in outcome["message"]
