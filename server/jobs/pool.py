"""The jobs of one server: queued here, or given to the pool's daemon where one runs.

Jobs on disk outlive the server; work that runs here does not: when the server ends in any way, the wardens end their
workers, and the jobs are found as "interrupted". What was queued and never started is taken up by the next server of
the project. What the daemon has goes on.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs import launch, resume
from samebits.server.jobs.order import order_of, settings_of, worker_environment
from samebits.server.jobs.queue import Queue, write_failure
from samebits.server.pool.spool import Spool
from samebits.tools.schema import asked
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from samebits.server.jobs.folder import State
    from samebits.server.jobs.index import Index
    from samebits.server.jobs.order import Order
    from samebits.server.jobs.queue import Entry
    from samebits.server.jobs.slots import Slots
    from samebits.tools.schema.experiment import Pool as Settings
    from samebits.tools.schema.requests import Request

POLL_S = 0.02
OTHERS_S = 0.1
"""Jobs that this server does not run itself are looked at so often."""
QUEUE_LIMIT = 1000
CLOSE_S = 40.0
"""A closing server waits so long for its wardens; they finish without it all the same."""


class Pool:
    """Jobs of one server. Everything here runs on the event loop's thread.

    Args:
        python: interpreter of the workers, before that of their experiments.
        env: on top of the workers' environment.
    """

    def __init__(
        self,
        index: Index,
        slots: Slots,
        *,
        python: str = "",
        spool: Spool | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.env = dict(env or {})
        self.index = index
        self.slots = slots
        self.python = python
        self.spool = spool or Spool()
        self.queue = Queue(slots, self._changed)
        self.ended: dict[str, anyio.Event] = {}
        self._arrived = anyio.Event()

    @property
    def entries(self) -> dict[str, Entry]:
        """Jobs of this server that have not ended, without those of the daemon."""
        return self.queue.entries

    def submit(self, request: Request, settings: Settings | None = None) -> str:
        """Write the job down and queue it; returns its id.

        Args:
            settings: [pool] that applies; None: of the request's experiment.

        Raises:
            UserError: what it names is not there, more GPUs asked for than there are, the queue is full, the disk
            cannot be written, the daemon is asked for and does not run.
        """
        if len(self.entries) >= QUEUE_LIMIT:
            raise UserError("the queue", f"{QUEUE_LIMIT} jobs wait already", "wait_job or cancel_job on some of them")
        asked.check(request)
        settings = settings or settings_of(request, Path())
        given_away = self.spool.wanted(settings)
        folder = launch.new_folder(self.index.root, request.kind)
        order = order_of(request, folder, settings, lambda: self.slots.available, python=self.python)
        launch.prepare(request, folder)
        try:
            self.index.add(folder.name, request.kind)
            self._put(order, given_away=given_away)
        except UserError:
            with suppress(sqlite3.Error):
                self.index.forget(folder.name)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder.name

    def take_up(self, settings: Callable[[Request], Settings]) -> list[str]:
        """Queue what a server that is gone had queued and never started; returns the ids.

        Args:
            settings: [pool] that applies to a request; raises UserError for one that may not be carried out.
        """
        taken = [row.id for row in self.index.left_behind() if self.index.claim(row)]
        for job in taken:
            folder = self.index.folder(job)
            try:
                request = resume.asked(folder)
                own = settings(request)
                order = order_of(request, folder, own, lambda: self.slots.available, python=self.python)
                self._put(order, given_away=self.spool.wanted(own))
            except UserError as error:
                write_failure(folder, str(error), "user")
                self.index.set_state(job, "failed")
        return taken

    def _put(self, order: Order, *, given_away: bool) -> None:
        if given_away:
            self.spool.put(order)
            return
        job = Path(order.folder).name
        if self.env:
            order = order.model_copy(update={"env": worker_environment() | self.env})
        self.queue.add(job, order)
        self.ended[job] = anyio.Event()
        self._arrived.set()

    async def run(self) -> None:
        """Start and follow jobs for ever."""
        while True:
            if not self.entries:
                self._arrived = anyio.Event()
                await self._arrived.wait()
            self.queue.turn()
            await anyio.sleep(POLL_S)

    def cancel(self, job: str) -> None:
        """Ask for a job's end; whoever owns it, its warden or its pool looks for the mark."""
        job_folder.mark_cancelled(self.index.folder(job))
        self.spool.withdraw(self.index.folder(job))

    async def wait(self, job: str, seconds: float) -> None:
        """Until the job has ended, at most so long. Jobs that others run are looked at now and then."""
        with anyio.move_on_after(seconds):
            if (ended := self.ended.get(job)) is not None:
                await ended.wait()
                return
            while (row := self.index.get(job)) is not None and not row.is_ended:
                await anyio.sleep(OTHERS_S)

    def waiting_for(self, job: str) -> str:
        """What a queued job waits for: the job that holds its slot, or a daemon to be started; "" when it does not."""
        folder = self.index.folder(job)
        if (entry := self.entries.get(job)) is not None:
            return "" if entry.running is not None else self._holder(entry.order)
        order = self.spool.of_job(folder)
        if order is None or (folder / "worker.json").exists():
            return ""
        return self._holder(order) if self.spool.daemon() else "the pool, which does not run: samebits pool serve"

    def _holder(self, order: Order) -> str:
        return "" if order.where == "ray" else self.slots.holder(order.need)

    async def close(self) -> None:
        """End everything that is this server's: running jobs are stopped, queued ones are left to the next server."""
        for entry in list(self.entries.values()):
            if entry.running is None and not self.queue.end_cancelled(entry):
                self.queue.leave(entry)
                self.index.let_go(entry.id)
                self.ended.pop(entry.id).set()
        self.queue.hang_up()
        with anyio.move_on_after(CLOSE_S):
            while self.entries:
                self.queue.turn()
                await anyio.sleep(POLL_S)

    def _changed(self, entry: Entry, state: State) -> None:
        self.index.set_state(entry.id, state)
        if state in job_folder.ENDED:
            self.ended.pop(entry.id).set()
