"""`samebits pool serve`, with real processes: jobs outlive clients and the daemon itself, each runs once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs.index import Index
from samebits.server.jobs.pool import Pool
from samebits.server.jobs.slots import Slots
from samebits.server.pool.spool import Spool
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import MeasureRequest
from samebits.tools.schema.results import Succeeded

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("strays")]
Asked = Callable[..., MeasureRequest]
Start = Callable[[], subprocess.Popen[bytes]]
CLI = [sys.executable, "-m", "samebits.server.cli.main"]
WAIT_S = 120.0
"""For what comes about in a moment on a quiet machine."""


def client(folder: Path, spool: Spool) -> Pool:
    """A server's pool; nothing runs here unless it keeps a job for itself."""
    return Pool(Index(folder / "jobs"), Slots(folder / "locks", ()), spool=spool)


def state(pool: Pool, job: str) -> str:
    row = pool.index.get(job)
    assert row is not None
    return row.state


def runs(pool: Pool, job: str) -> bool:
    folder = pool.index.folder(job)
    return (folder / "worker.json").exists() and job_folder.last_event(folder) is not None


async def test_a_job_of_the_daemon_outlives_the_server_that_asked_for_it(
    asked: Asked, tmp_path: Path, spool: Spool, daemon: Start, eventually: Any
) -> None:
    daemon()
    pool = client(tmp_path, spool)
    job = pool.submit(asked("until"))
    eventually(lambda: runs(pool, job))
    assert pool.entries == {}
    await pool.close()
    pool.index.close()
    later = client(tmp_path, spool)
    assert state(later, job) == "running"
    (later.index.folder(job) / "go").touch()
    await later.wait(job, WAIT_S)
    assert state(later, job) == "succeeded"
    eventually(lambda: spool.names() == [])


async def test_embedded_work_ends_with_its_server_though_a_daemon_runs(
    asked: Asked, tmp_path: Path, spool: Spool, daemon: Start
) -> None:
    """The control of the test above."""
    daemon()
    pool = client(tmp_path, spool)
    job = pool.submit(asked("sleep", 60, backend="embedded"))
    assert list(pool.entries) == [job]
    await pool.close()
    assert state(pool, job) == "interrupted"


async def test_a_killed_daemon_loses_no_job_and_its_next_start_takes_them_up(
    asked: Asked, tmp_path: Path, spool: Spool, daemon: Start, strays: Any, eventually: Any
) -> None:
    first = daemon()
    pool = client(tmp_path, spool)
    jobs = [pool.submit(asked(do)) for do in ("until", "sleep", "sleep")]
    eventually(lambda: runs(pool, jobs[0]))
    first.kill()
    first.wait()
    assert [state(pool, job) for job in jobs] == ["running", "queued", "queued"]
    assert strays(), "it goes on under its warden"
    assert "samebits pool serve" in pool.waiting_for(jobs[1])
    daemon()
    assert [state(pool, job) for job in jobs] == ["running", "queued", "queued"], "its slot is still taken"
    (pool.index.folder(jobs[0]) / "go").touch()
    for job in jobs:
        await pool.wait(job, WAIT_S)
    assert [state(pool, job) for job in jobs] == ["succeeded"] * 3
    events = [(pool.index.folder(job) / "events.jsonl").read_text().splitlines() for job in jobs]
    assert [len(lines) for lines in events] == [1, 1, 1], "each was carried out once"
    eventually(lambda: spool.names() == [])


async def test_what_ended_while_no_daemon_ran_is_not_run_again(
    asked: Asked, tmp_path: Path, spool: Spool, daemon: Start, eventually: Any
) -> None:
    first = daemon()
    pool = client(tmp_path, spool)
    done, lost = pool.submit(asked("until")), pool.submit(asked("sleep", 60))
    eventually(lambda: runs(pool, done))
    first.kill()
    first.wait()
    (pool.index.folder(done) / "go").touch()
    await pool.wait(done, WAIT_S)
    daemon()
    eventually(lambda: runs(pool, lost))
    pids = json.loads((pool.index.folder(lost) / "worker.json").read_text())
    os.kill(pids["warden"], signal.SIGKILL)
    await pool.wait(lost, WAIT_S)
    assert [state(pool, job) for job in (done, lost)] == ["succeeded", "interrupted"]
    eventually(lambda: spool.names() == [])


async def test_stop_ends_what_runs_and_keeps_what_waits(
    asked: Asked, tmp_path: Path, spool: Spool, daemon: Start, strays: Any, eventually: Any
) -> None:
    first = daemon()
    pool = client(tmp_path, spool)
    running, waiting = pool.submit(asked("daemon")), pool.submit(asked("sleep"))
    eventually(lambda: (pool.index.folder(running) / "daemon").exists())
    done = subprocess.run([*CLI, "pool", "stop"], capture_output=True, text=True, check=True)
    assert "1 queued job waits for its next start" in done.stdout
    assert first.wait(WAIT_S) == 0
    assert strays() == []
    assert [state(pool, job) for job in (running, waiting)] == ["interrupted", "queued"]
    daemon()
    await pool.wait(waiting, WAIT_S)
    assert state(pool, waiting) == "succeeded"


def test_a_second_daemon_is_refused_with_one_line(spool: Spool, daemon: Start, tmp_path: Path) -> None:
    first = daemon()
    for words in (["serve"], ["serve", "--detach"]):
        done = subprocess.run([*CLI, "pool", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.strip().splitlines()[-1].startswith(f"error: the pool: runs already (process {first.pid}")
    assert spool.daemon() == first.pid
    assert (spool.folder.stat().st_mode & 0o777, spool.tickets.stat().st_mode & 0o777) == (0o700, 0o700)


def test_detached_it_answers_status_until_it_is_stopped(spool: Spool, daemon: Start, tmp_path: Path) -> None:
    assert subprocess.run([*CLI, "pool", "status"], capture_output=True, check=False).returncode == 2
    subprocess.run([*CLI, "pool", "serve", "--detach"], capture_output=True, check=True)
    try:
        said = subprocess.run([*CLI, "pool", "status", "--json"], capture_output=True, check=True).stdout
        assert json.loads(said) == {"pid": spool.daemon(), "folder": str(spool.folder), "jobs": []}
    finally:
        subprocess.run([*CLI, "pool", "stop"], capture_output=True, check=True)
    assert spool.daemon() is None


async def test_a_job_that_does_not_answer_a_cancel_is_killed(
    asked: Asked, tmp_path: Path, spool: Spool, daemon: Start, strays: Any, eventually: Any
) -> None:
    daemon()
    pool = client(tmp_path, spool)
    job = pool.submit(asked("hang"))
    eventually(lambda: runs(pool, job))
    pool.cancel(job)
    await pool.wait(job, WAIT_S)
    assert state(pool, job) == "cancelled"
    eventually(lambda: not strays())


def test_without_a_daemon_a_waiting_job_can_be_cancelled_and_serve_is_refused(
    asked: Asked, tmp_path: Path, spool: Spool, daemon: Start
) -> None:
    first = daemon()
    first.kill()
    first.wait()
    pool = client(tmp_path, spool)
    with pytest.raises(UserError, match=r"no pool runs\. Next: start `samebits pool serve"):
        pool.submit(asked("sleep", backend="serve"))
    assert pool.index.count() == 0
    from samebits.server.jobs import launch
    from samebits.server.jobs.order import order_of
    from samebits.tools.schema.experiment import Pool as Settings

    folder = tmp_path / "jobs" / "one"
    launch.prepare(asked("sleep"), folder)
    spool.put(order_of(asked("sleep"), folder, Settings(), tuple))
    assert state(pool, "one") == "queued"
    pool.cancel("one")
    assert state(pool, "one") == "cancelled"
    assert spool.names() == []


async def test_the_worker_has_its_clients_environment_and_folder_without_secrets(
    asked: Asked, tmp_path: Path, spool: Spool, daemon: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon()
    monkeypatch.setenv("VLLM_CPU_OF_THE_CLIENT", "1")
    monkeypatch.setenv("HF_TOKEN", "planted")
    pool = client(tmp_path, spool)
    job = pool.submit(asked("env"))
    await pool.wait(job, WAIT_S)
    outcome = job_folder.outcome(pool.index.folder(job))
    assert isinstance(outcome, Succeeded)
    names = {row["name"]: row["value"] for row in outcome.result.rows}
    assert names["VLLM_CPU_OF_THE_CLIENT"] == "1"
    assert "planted" not in names.values()


async def test_stop_keep_jobs_says_what_goes_on_and_what_waits(
    asked: Asked, tmp_path: Path, spool: Spool, daemon: Start, eventually: Any
) -> None:
    process = daemon()
    pool = client(tmp_path, spool)
    first = pool.submit(asked("until"))
    eventually(lambda: runs(pool, first))
    pool.submit(asked("sleep"))
    said = [subprocess.run([*CLI, "pool", "stop", "--keep-jobs"], capture_output=True, text=True, check=True).stdout]
    process.wait(WAIT_S)
    said.append(subprocess.run([*CLI, "pool", "status"], capture_output=True, text=True, check=False).stdout)
    for text in said:
        assert "1 running job goes on, to be adopted by its next start; 1 queued job waits for its next start" in text
    (pool.index.folder(first) / "go").touch()


def test_a_job_with_a_folder_of_its_own_is_found_when_its_client_was_killed(
    project: Path, tmp_path: Path, spool: Spool, daemon: Start, strays: Any, eventually: Any
) -> None:
    daemon()
    place = tmp_path / "elsewhere" / "mpool"
    command = [*CLI, "measure", "--set", "rollout.engine.do=daemon", "-o", str(place)]
    process = subprocess.Popen(command, cwd=project, stderr=subprocess.DEVNULL)
    eventually(lambda: [path for path in place.glob("daemon") if (place / "worker.json").exists()])
    process.kill()
    process.wait(WAIT_S)
    listed = subprocess.run([*CLI, "jobs"], cwd=project, capture_output=True, text=True, check=True).stdout
    assert "mpool  running" in listed
    ended = subprocess.run(
        [*CLI, "jobs", "cancel", str(place)], cwd=project, capture_output=True, text=True, check=True
    )
    assert ended.stdout == "mpool: cancelled\n"
    eventually(lambda: not strays())


async def test_a_damaged_ticket_holds_nothing_up(asked: Asked, tmp_path: Path, spool: Spool, daemon: Start) -> None:
    daemon()
    (spool.tickets / "0.json").write_text('{"folder": ')
    pool = client(tmp_path, spool)
    job = pool.submit(asked("sleep"))
    await pool.wait(job, WAIT_S)
    assert state(pool, job) == "succeeded"


def test_a_killed_command_line_leaves_its_job_with_the_daemon_and_an_interrupted_one_ends_it(
    project: Path, spool: Spool, daemon: Start, strays: Any, eventually: Any
) -> None:
    daemon()
    newest = lambda: Index(project / ".samebits" / "jobs").rows(limit=1)[0]  # noqa: E731
    for number, after in ((signal.SIGKILL, "running"), (signal.SIGINT, "cancelled")):
        command = [*CLI, "measure", "--set", "rollout.engine.do=daemon"]
        process = subprocess.Popen(command, cwd=project, stderr=subprocess.DEVNULL)
        eventually(strays)
        eventually(lambda: newest().state == "running")
        process.send_signal(number)
        process.wait(WAIT_S)
        assert newest().state == after
        subprocess.run([*CLI, "jobs", "cancel", newest().id], cwd=project, capture_output=True, check=False)
        eventually(lambda: not strays())


async def test_two_clients_jobs_take_turns_on_one_slot(
    asked: Asked, tmp_path: Path, spool: Spool, daemon: Start
) -> None:
    daemon()
    one, two = client(tmp_path / "a", spool), client(tmp_path / "b", spool)
    jobs = [(pool, pool.submit(asked("sleep", 0.3))) for pool in (one, two, one, two)]
    spans = []
    for pool, job in jobs:
        await pool.wait(job, WAIT_S)
        outcome = job_folder.outcome(pool.index.folder(job))
        assert isinstance(outcome, Succeeded)
        spans.append((outcome.result.rows[0]["started"], outcome.result.rows[0]["ended"]))
    assert spans == sorted(spans)  # type: ignore[type-var]
    assert all(before[1] <= after[0] for before, after in pairwise(spans))  # type: ignore[operator]
