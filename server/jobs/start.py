"""Starts one job of the command line: in the pool's daemon where one runs, else as a child of this process.

Such a child waits for the GPUs it needs, as jobs of a server do; on the CPU it starts at once.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs import launch
from samebits.server.jobs.links import listed
from samebits.server.jobs.order import order_of, settings_of, worker_environment
from samebits.server.jobs.queue import RAY_RUNNER, write_order
from samebits.server.jobs.slots import Held, Slots, default_folder
from samebits.server.pool.spool import Spool
from samebits.tools.schema import asked
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from samebits.server.jobs.launch import Running
    from samebits.server.jobs.order import Order
    from samebits.tools.schema.requests import Request
    from samebits.tools.schema.results import Outcome

POLL_S = 0.1
WAIT_S, SAY_EVERY_S = 0.25, 60.0


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


def start(request: Request, folder: Path) -> Running | Submitted:
    """Write the request down and have it carried out, by the interpreter and within the time limit of [pool].

    Raises:
        UserError: what it names is not there, the folder exists or cannot be made, the interpreter cannot be run, more
        GPUs asked for than there are, the daemon is asked for and does not run, the project's experiment file is not
        valid, the wait for a GPU was broken off.
    """
    asked.check(request)
    settings = settings_of(request, Path())
    spool, slots = Spool(), Slots(default_folder())
    given_away = spool.wanted(settings)
    order = order_of(request, folder, settings, lambda: slots.available)
    held = Held((), (), {}) if given_away or order.where == "ray" else wait_for(slots, order)
    try:
        with listed(folder):
            if given_away:
                launch.prepare(request, folder)
                spool.put(order)
                return Submitted(folder, spool)
            if order.where == "here":
                env = dict(os.environ) | held.env
                limit = order.time_limit_s
                return launch.start(
                    request, folder, python=order.python, time_limit_s=limit, env=env, keep=held.descriptors
                )
            launch.prepare(request, folder)
            write_order(order)
            return launch.spawn(folder, env=worker_environment(ray=True), module=RAY_RUNNER)
    finally:
        held.close()


def wait_for(slots: Slots, order: Order) -> Held:
    """The GPUs of a job, once they are free; who has them is said on stderr. Nothing is written down before.

    A job of the CPU takes nothing, nor does one that is started inside a job, which has its GPUs already.

    Raises:
        UserError: it was broken off (Ctrl-C), or the locks cannot be used.
    """
    if not order.need.gpus or launch.JOB_VARIABLE in os.environ:
        return Held((), (), {})
    folder, said = Path(order.folder), float("-inf")
    try:
        while (held := slots.take(order.need, folder.name, folder)) is None:
            if time.monotonic() - said > SAY_EVERY_S:
                said = time.monotonic()
                print(f"waiting for a GPU: {slots.holder(order.need) or 'another job'} has it", file=sys.stderr)
            time.sleep(WAIT_S)
    except KeyboardInterrupt:
        raise UserError("the wait for a GPU", "broken off; nothing was started", "run the command again") from None
    return held
