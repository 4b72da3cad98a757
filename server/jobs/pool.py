"""The embedded pool: queues jobs, starts each when its slot is free, and follows it to its end.

Jobs on disk outlive the server, running work does not: when the server ends in any way, the wardens end their workers,
and the jobs are found as "interrupted". Calling the tool again runs them anew.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs import launch
from samebits.server.jobs.slots import Need, Slots, need_of
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from samebits.server.jobs.folder import State
    from samebits.server.jobs.index import Index
    from samebits.server.jobs.launch import Running
    from samebits.tools.schema.requests import Request

POLL_S = 0.05
QUEUE_LIMIT = 1000
CLOSE_S = 40.0
"""A closing server waits so long for its wardens; they finish without it all the same."""
SECRET = re.compile(r"(^|_)(TOKENS?|SECRETS?|PASSWORD|PASSWD|CREDENTIALS?|APIKEY|KEY)(_|$)", re.IGNORECASE)


@dataclass(slots=True)
class Entry:
    """One job of this server that has not ended."""

    id: str
    folder: Path
    need: Need
    python: str
    time_limit_s: float
    memory_limit_bytes: int
    running: Running | None = None
    ended: anyio.Event = field(default_factory=anyio.Event)


class Pool:
    """Jobs of one server. Everything here runs on the event loop's thread."""

    def __init__(self, index: Index, slots: Slots, *, python: str = "", default_time_limit_s: float = 3600.0) -> None:
        self.index = index
        self.slots = slots
        self.python = python
        self.default_time_limit_s = default_time_limit_s
        self.entries: dict[str, Entry] = {}
        self._arrived = anyio.Event()

    def submit(self, request: Request) -> str:
        """Write the job down and queue it; returns its id.

        Raises:
            UserError: more GPUs asked for than there are, the queue is full, the disk cannot be written.
        """
        if len(self.entries) >= QUEUE_LIMIT:
            raise UserError("the queue", f"{QUEUE_LIMIT} jobs wait already", "wait_job or cancel_job on some of them")
        need = need_of(request, self.slots.available)
        folder = launch.new_folder(self.index.root, request.kind)
        launch.prepare(request, folder)
        pool = experiment.pool if (experiment := getattr(request, "experiment", None)) is not None else None
        try:
            self.index.add(folder.name, request.kind)
        except UserError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self.entries[folder.name] = Entry(
            folder.name,
            folder,
            need,
            python=self.python or (pool.worker_python if pool else ""),
            time_limit_s=pool.time_limit_s if pool else self.default_time_limit_s,
            memory_limit_bytes=launch.memory_limit_bytes(request),
        )
        self._arrived.set()
        return folder.name

    async def run(self) -> None:
        """Start and follow jobs for ever."""
        while True:
            if not self.entries:
                self._arrived = anyio.Event()
                await self._arrived.wait()
            self.turn()
            await anyio.sleep(POLL_S)

    def turn(self) -> None:
        """One look at every job."""
        # Who waits for a GPU lets no later one pass by, or a job that needs several would wait for ever.
        full: set[str] = set()
        for entry in list(self.entries.values()):
            if entry.running is not None:
                if entry.running.outcome() is not None:
                    self._end(entry, job_folder.state(entry.folder, owner_alive=True))
            elif (entry.folder / "cancel").exists():
                self._end(entry, "cancelled")
            elif (kind := entry.need.slot or "gpu") not in full and not self._start(entry):
                full.add(kind)

    def cancel(self, job: str) -> None:
        """Ask for a job's end; whoever owns it, its warden or its pool looks for the mark."""
        job_folder.mark_cancelled(self.index.folder(job))

    async def wait(self, job: str, seconds: float) -> None:
        """Until the job has ended, at most so long. Jobs of other servers are looked at now and then."""
        with anyio.move_on_after(seconds):
            if (entry := self.entries.get(job)) is not None:
                await entry.ended.wait()
                return
            while (row := self.index.get(job)) is not None and not row.is_ended:
                await anyio.sleep(0.5)

    def waiting_for(self, job: str) -> str:
        """The job that holds the slot a queued job waits for; "" when it does not wait here."""
        entry = self.entries.get(job)
        return "" if entry is None or entry.running is not None else self.slots.holder(entry.need)

    async def close(self) -> None:
        """End everything: queued jobs become interrupted, running ones are stopped by their wardens."""
        for entry in list(self.entries.values()):
            if entry.running is None:
                self._end(entry, "interrupted")
            elif entry.running.process.stdin is not None:
                entry.running.process.stdin.close()
        with anyio.move_on_after(CLOSE_S):
            while self.entries:
                self.turn()
                await anyio.sleep(POLL_S)

    def _start(self, entry: Entry) -> bool:
        """Start it if its slot is free; a job that cannot be started ends here, with its reason."""
        try:
            held = self.slots.take(entry.need, entry.id)
            if held is None:
                return False
            try:
                entry.running = launch.spawn(
                    entry.folder,
                    python=entry.python,
                    time_limit_s=entry.time_limit_s,
                    memory_limit_bytes=entry.memory_limit_bytes,
                    env=worker_environment() | held.env,
                    keep=held.descriptors,
                )
            finally:
                held.close()
        except (UserError, OSError) as error:
            write_failure(entry.folder, str(error), "user" if isinstance(error, UserError) else "resource")
            self._end(entry, "failed")
            return True
        self.index.set_state(entry.id, "running")
        return True

    def _end(self, entry: Entry, state: State) -> None:
        self.index.set_state(entry.id, state)
        if state in ("cancelled", "interrupted") and not (entry.folder / "ended.json").exists():
            how = "stopped" if state == "cancelled" else "owner_gone"
            _write(entry.folder / "ended.json", f'{{"how": "{how}", "code": 0, "stuck": [], "limit_s": 0.0}}')
        del self.entries[entry.id]
        entry.ended.set()


def worker_environment() -> dict[str, str]:
    """This process's environment without what looks like a secret: workers run foreign code."""
    return {name: value for name, value in os.environ.items() if not SECRET.search(name)}


def write_failure(folder: Path, message: str, error: str) -> None:
    """An outcome for a job that no worker could be started for."""
    from samebits.tools.schema.results import Failed

    _write(
        folder / "result.json", Failed.model_validate({"error": error, "message": message}).model_dump_json(indent=1)
    )


def _write(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
