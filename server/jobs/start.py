"""Starts one job of the command line: in the pool's daemon where one runs, else at once, as a child of this process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs import launch
from samebits.server.jobs.links import listed
from samebits.server.jobs.order import order_of, settings_of, worker_environment
from samebits.server.jobs.queue import RAY_RUNNER, write_order
from samebits.server.jobs.slots import gpus
from samebits.server.pool.spool import Spool

if TYPE_CHECKING:
    from samebits.server.jobs.launch import Running
    from samebits.tools.schema.requests import Request
    from samebits.tools.schema.results import Outcome

POLL_S = 0.1


@dataclass(slots=True)
class Submitted(launch.Watched):
    """A job that the daemon carries out."""

    spool: Spool

    def outcome(self) -> Outcome | None:
        """How it ended; None while it waits or runs."""
        state = job_folder.state(self.folder, owner_alive=False)
        return job_folder.outcome(self.folder) if state in job_folder.ENDED else None

    def stop(self) -> None:
        """End it, wherever it is, and wait for that."""
        job_folder.mark_cancelled(self.folder)
        self.spool.withdraw(self.folder)
        until = time.monotonic() + launch.GRACE_S + 15
        while self.outcome() is None and time.monotonic() < until:
            time.sleep(POLL_S)


def start(
    request: Request, folder: Path, *, python: str = "", time_limit_s: float | None = None
) -> Running | Submitted:
    """Write the request down and have it carried out.

    Args:
        time_limit_s: of a child of this process; None: none.

    Raises:
        UserError: the folder exists or cannot be made, the interpreter cannot be run, more GPUs asked for than there
        are, the daemon is asked for and does not run, the project's experiment file is not valid.
    """
    settings = settings_of(request, Path())
    spool = Spool()
    given_away = spool.wanted(settings)
    # A child of this process takes no slot, so it does not matter here how many GPUs there are.
    order = order_of(request, folder, settings, gpus if given_away else lambda: (), python=python)
    with listed(folder):
        if given_away:
            launch.prepare(request, folder)
            spool.put(order)
            return Submitted(folder, spool)
        if order.where == "here":
            return launch.start(request, folder, python=order.python, time_limit_s=time_limit_s)
        launch.prepare(request, folder)
        write_order(order)
        return launch.spawn(folder, env=worker_environment(ray=True), module=RAY_RUNNER)
