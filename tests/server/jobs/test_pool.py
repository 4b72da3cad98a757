"""Jobs and the embedded pool, with real processes (their worker is the stand-in of conftest.py)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs import launch
from samebits.server.jobs.index import Index
from samebits.server.jobs.pool import QUEUE_LIMIT, Pool
from samebits.server.jobs.slots import Slots
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import MeasureRequest
from samebits.tools.schema.results import Failed, Succeeded

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("strays")]
Asked = Callable[..., MeasureRequest]
WAIT_S = 120.0
"""For what comes about in a moment on a quiet machine."""


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that does not answer TERM is killed after half a second here, 25 in earnest."""
    monkeypatch.setattr(launch, "GRACE_S", 0.5)


@asynccontextmanager
async def running(folder: Path, locks: Path | None = None) -> AsyncIterator[Pool]:
    pool = Pool(Index(folder / "jobs"), Slots(locks or folder / "locks", ()))
    async with anyio.create_task_group() as group:
        group.start_soon(pool.run)
        try:
            yield pool
        finally:
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await pool.close()


async def ended(pool: Pool, request: MeasureRequest) -> tuple[str, Any]:
    job = pool.submit(request)
    await pool.wait(job, WAIT_S)
    row = pool.index.get(job)
    assert row is not None
    return row.state, job_folder.outcome(pool.index.folder(job))


async def started(pool: Pool, job: str) -> Path:
    folder = pool.index.folder(job)
    with anyio.fail_after(WAIT_S):
        while not (folder / "worker.json").exists() or job_folder.last_event(folder) is None:
            await anyio.sleep(0.02)
    return folder


async def test_a_job_leaves_its_answer_and_is_found_by_a_later_server(asked: Asked, tmp_path: Path) -> None:
    async with running(tmp_path) as pool:
        state, outcome = await ended(pool, asked("sleep"))
    assert state == "succeeded"
    assert isinstance(outcome, Succeeded)
    later = Index(tmp_path / "jobs")
    assert [(row.kind, row.state) for row in later.rows()] == [("measure", "succeeded")]


async def test_a_worker_that_segfaults_is_one_clear_failure_and_the_next_job_runs(asked: Asked, tmp_path: Path) -> None:
    async with running(tmp_path) as pool:
        state, outcome = await ended(pool, asked("segfault"))
        assert state == "failed"
        assert isinstance(outcome, Failed)
        assert "killed by signal 11" in outcome.message
        assert "Next: read the end of" in outcome.message
        assert (await ended(pool, asked("sleep")))[0] == "succeeded"


async def test_after_a_cuda_error_the_next_job_has_another_process(
    asked: Asked, tmp_path: Path, alive: Callable[[int], bool]
) -> None:
    """A process that saw one has a context that fails every later call."""
    async with running(tmp_path) as pool:
        jobs = [pool.submit(asked("cuda")), pool.submit(asked("sleep"))]
        for job in jobs:
            await pool.wait(job, WAIT_S)
        failed, fine = (job_folder.outcome(pool.index.folder(job)) for job in jobs)
        log = (pool.index.folder(jobs[0]) / "log.txt").read_text()
        worker = json.loads((pool.index.folder(jobs[0]) / "worker.json").read_text())["worker"]
    assert isinstance(failed, Failed)
    assert "CUDA error: an illegal memory access" in log
    assert isinstance(fine, Succeeded)
    assert fine.result.rows[0]["pid"] != worker
    assert not alive(worker)


async def test_a_hang_in_native_code_is_ended_at_the_time_limit(asked: Asked, tmp_path: Path) -> None:
    async with running(tmp_path) as pool:
        state, outcome = await ended(pool, asked("hang", time_limit_s=1))
    assert (state, outcome.state, outcome.limit_s) == ("timed_out", "timed_out", 1)


@pytest.mark.parametrize("do", ["memory", "shm"])
async def test_a_job_over_its_memory_limit_is_ended_and_one_below_is_not(do: str, asked: Asked, tmp_path: Path) -> None:
    async with running(tmp_path) as pool:
        state, outcome = await ended(pool, asked(do, 300, memory_limit_mib=150))
        assert (state, outcome.error) == ("failed", "resource")
        assert "memory_limit_mib" in outcome.message
        assert (await ended(pool, asked("sleep", 1.2, memory_limit_mib=150)))[0] == "succeeded"


async def test_cancel_ends_a_job_with_a_child_that_left_its_process_group(
    asked: Asked, tmp_path: Path, alive: Callable[[int], bool]
) -> None:
    async with running(tmp_path) as pool:
        job = pool.submit(asked("daemon"))
        folder = await started(pool, job)
        with anyio.fail_after(WAIT_S):
            while not (folder / "daemon").exists():
                await anyio.sleep(0.02)
        child = int((folder / "daemon").read_text())
        assert alive(child)
        pool.cancel(job)
        await pool.wait(job, WAIT_S)
        assert not alive(child)
        assert (row := pool.index.get(job)) is not None
        assert row.state == "cancelled"


async def test_what_a_finished_worker_leaves_running_is_ended(asked: Asked, tmp_path: Path, strays: Any) -> None:
    async with running(tmp_path) as pool:
        assert (await ended(pool, asked("leave")))[0] == "succeeded"
        assert strays() == []


async def test_a_cancelled_job_of_the_queue_never_starts(asked: Asked, tmp_path: Path) -> None:
    async with running(tmp_path) as pool:
        first = pool.submit(asked("sleep", 60))
        await started(pool, first)
        second = pool.submit(asked("sleep"))
        assert pool.waiting_for(second) == first
        pool.cancel(second)
        await pool.wait(second, WAIT_S)
        assert pool.index.get(second).state == "cancelled"  # type: ignore[union-attr]
        assert not (pool.index.folder(second) / "worker.json").exists()
        assert pool.index.get(first).state == "running"  # type: ignore[union-attr]
        pool.cancel(first)
        await pool.wait(first, WAIT_S)


async def test_a_queue_that_was_closed_is_taken_up_once_without_what_was_cancelled_or_is_a_day_old(
    asked: Asked, tmp_path: Path
) -> None:
    async with running(tmp_path) as pool:
        ran = pool.submit(asked("sleep", 600))
        await started(pool, ran)
        waited, cancelled, old = (pool.submit(asked("sleep")) for _ in range(3))
        pool.index.connection.execute("UPDATE jobs SET created = created - 90000 WHERE id = ?", (old,))
        pool.cancel(cancelled)
    index = Index(tmp_path / "jobs")
    assert {row.id: row.state for row in index.rows()} == {
        ran: "interrupted",
        waited: "interrupted",
        cancelled: "cancelled",
        old: "interrupted",
    }
    async with running(tmp_path) as one, running(tmp_path) as two:
        taken = [pool.take_up(lambda request: request.experiment.pool) for pool in (one, two)]  # type: ignore[union-attr]
        assert taken == [[waited], []]
        assert one.index.get(waited).state == "queued"  # type: ignore[union-attr]
        await one.wait(waited, WAIT_S)
    assert index.get(waited).state == "succeeded"  # type: ignore[union-attr]


async def test_a_queued_job_that_may_not_be_carried_out_any_more_fails_with_the_reason(
    asked: Asked, tmp_path: Path
) -> None:
    def refuse(request: Any) -> Any:
        raise UserError("rollout.model", "outside the allowed folders", "serve with --root for it, too")

    async with running(tmp_path) as pool:
        ran = pool.submit(asked("sleep", 600))
        await started(pool, ran)
        waited, torn = pool.submit(asked("sleep")), pool.submit(asked("sleep"))
    (tmp_path / "jobs" / torn / "request.json").write_text("{")
    async with running(tmp_path) as pool:
        assert pool.take_up(refuse) == [waited, torn]
        told = [job_folder.outcome(pool.index.folder(job)).message for job in (waited, torn)]  # type: ignore[union-attr]
        assert "outside the allowed folders. Next: serve with --root" in told[0]
        assert "its request cannot be read. Next: ask for it anew" in told[1]
        assert {pool.index.get(job).state for job in (waited, torn)} == {"failed"}  # type: ignore[union-attr]


async def test_prints_go_to_the_log_and_a_flood_keeps_its_end(asked: Asked, tmp_path: Path) -> None:
    async with running(tmp_path) as pool:
        job = pool.submit(asked("flood", 30))
        await pool.wait(job, WAIT_S)
        folder = pool.index.folder(job)
    assert sum(path.stat().st_size for path in folder.glob("log*.txt")) <= 18 << 20
    assert (folder / "log.txt").read_bytes().endswith(b"the last line\n")


async def test_two_servers_share_one_slot(asked: Asked, tmp_path: Path) -> None:
    locks = tmp_path / "locks"
    async with running(tmp_path / "a", locks) as one, running(tmp_path / "b", locks) as two:
        jobs = [(pool, pool.submit(asked("sleep", 0.3))) for pool in (one, two, one, two)]
        for pool, job in jobs:
            await pool.wait(job, WAIT_S)
        spans = []
        for pool, job in jobs:
            outcome = job_folder.outcome(pool.index.folder(job))
            assert isinstance(outcome, Succeeded)
            spans.append((outcome.result.rows[0]["started"], outcome.result.rows[0]["ended"]))
    spans.sort()
    assert all(before[1] <= after[0] for before, after in pairwise(spans)), spans  # type: ignore[operator]


async def test_without_a_common_lock_they_would_overlap(asked: Asked, tmp_path: Path) -> None:
    """The negative control of the test above."""
    async with running(tmp_path / "a") as one, running(tmp_path / "b") as two:
        jobs = [(pool, pool.submit(asked("sleep", 60))) for pool in (one, two)]
        for pool, job in jobs:
            await started(pool, job)
        assert [pool.index.get(job).state for pool, job in jobs] == ["running", "running"]  # type: ignore[union-attr]


@pytest.mark.timeout(1200)  # 20 s on a quiet machine
async def test_two_hundred_jobs_queue_and_every_one_runs(asked: Asked, tmp_path: Path) -> None:
    async with running(tmp_path) as pool:
        jobs = [pool.submit(asked("sleep")) for _ in range(200)]
        assert pool.index.count() == 200
        for job in jobs:
            await pool.wait(job, 500)
        states = {row.id: row.state for row in pool.index.rows(limit=300)}
        rows = [job_folder.outcome(pool.index.folder(job)).result.rows[0] for job in jobs]  # type: ignore[union-attr]
    assert states == dict.fromkeys(jobs, "succeeded")
    spans = [(float(row["started"]), float(row["ended"])) for row in rows]  # type: ignore[arg-type]
    assert spans == sorted(spans), "in the order in which they came"
    assert all(before[1] <= after[0] for before, after in pairwise(spans)), "one at a time"


async def test_a_full_queue_refuses_the_next_job_and_keeps_the_others(asked: Asked, tmp_path: Path) -> None:
    pool = Pool(Index(tmp_path / "jobs"), Slots(tmp_path / "locks", ()))  # nothing is started: nobody calls run()
    jobs = [pool.submit(asked("sleep")) for _ in range(QUEUE_LIMIT)]
    with pytest.raises(UserError, match=r"1000 jobs wait already\. Next: wait_job or cancel_job"):
        pool.submit(asked("sleep"))
    assert pool.index.count() == len(jobs) == QUEUE_LIMIT == 1000
    assert len(list((tmp_path / "jobs").glob("2*"))) == QUEUE_LIMIT, "the refused one left no folder"
    pool.cancel(jobs[0])
    pool.queue.end_cancelled(pool.entries[jobs[0]])
    assert pool.submit(asked("sleep")) not in jobs, "the control: there is room for one again"
    pool.index.close()


async def test_a_torn_result_is_a_failure_that_names_the_file(asked: Asked, tmp_path: Path) -> None:
    async with running(tmp_path) as pool:
        state, outcome = await ended(pool, asked("torn"))
    assert state == "failed"
    assert "result.json is damaged. Next: run the job again" in outcome.message


async def test_an_interpreter_that_is_none_fails_the_job_and_names_the_key(asked: Asked, tmp_path: Path) -> None:
    async with running(tmp_path) as pool:
        state, outcome = await ended(pool, asked("sleep", worker_python=str(tmp_path / "nothing")))
    assert (state, outcome.error) == ("failed", "user")
    assert "pool.worker_python" in outcome.message


async def test_a_worker_sees_no_secret_of_its_server(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "planted")
    monkeypatch.setenv("OPENAI_API_KEY", "planted")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    async with running(tmp_path) as pool:
        _, outcome = await ended(pool, asked("env"))
    names = {row["name"]: row["value"] for row in outcome.result.rows}
    assert "planted" not in names.values()
    assert names["TOKENIZERS_PARALLELISM"] == "false"
    assert "PATH" in names


async def test_a_damaged_index_is_made_again_from_the_folders(asked: Asked, tmp_path: Path) -> None:
    async with running(tmp_path) as pool:
        await ended(pool, asked("sleep"))
        await ended(pool, asked("segfault"))
    (tmp_path / "jobs" / "index.sqlite3").write_bytes(b"no database at all" * 100)
    assert sorted(row.state for row in Index(tmp_path / "jobs").rows()) == ["failed", "succeeded"]
    assert len(list((tmp_path / "jobs").glob("index.damaged-*"))) == 1


async def test_a_full_disk_is_one_clear_refusal_and_what_runs_goes_on(asked: Asked, tmp_path: Path) -> None:
    """SQLite is told that the disk holds no further page: its own error, met as on a full disk."""
    async with running(tmp_path) as pool:
        first = pool.submit(asked("sleep", 0.5))
        pages = pool.index.connection.execute("PRAGMA page_count").fetchone()[0]
        pool.index.connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(UserError, match=r"full\. Next: make room on the disk"):
            [pool.submit(asked("sleep", 60)) for _ in range(100)]
        waiting = [job for job in pool.entries if job != first]
        folders = {path.name for path in (tmp_path / "jobs").iterdir() if path.is_dir()}
        assert folders == {first, *waiting}, "a refused job leaves no folder"
        await pool.wait(first, WAIT_S)
        assert job_folder.outcome(pool.index.folder(first)).state == "succeeded"
