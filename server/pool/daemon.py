"""The pool's daemon: carries out the tickets of its spool, for every server and command line of this user.

Its jobs have no lifeline to it. When it is killed, what runs goes on under its wardens (which keep time and memory
limits and look for cancel marks), and its next start takes it up.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs.queue import Entry, Queue
from samebits.server.jobs.sweep import sweep

if TYPE_CHECKING:
    from types import FrameType

    from samebits.server.jobs.folder import State
    from samebits.server.jobs.slots import Slots
    from samebits.server.pool.spool import Spool

BUSY_S, IDLE_S = 0.02, 0.05
STOP_S = 40.0
"""So long a stopping daemon waits for its wardens; they finish without it all the same."""


class Daemon:
    """One daemon; `run` returns when it was told to stop."""

    def __init__(self, spool: Spool, slots: Slots) -> None:
        self.spool = spool
        self.queue = Queue(slots, self._changed, lifeline=False)
        self.stopping = ""
        self.damaged: set[str] = set()

    def run(self) -> None:
        """Until TERM, INT, HUP (what runs is ended, what waits stays for the next start) or USR1 (that goes on too)."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, self._stop)
        with self.spool.owned():
            first = True
            while not self.stopping:
                self.collect(adopting=first)
                first = False
                self.queue.turn()
                time.sleep(BUSY_S if self.queue.entries else IDLE_S)
            if self.stopping == "end":
                self.end()

    def collect(self, *, adopting: bool = False) -> None:
        """Take in new tickets.

        Args:
            adopting: they are what another daemon left: some have begun or ended.
        """
        for name in self.spool.names():
            if name in self.queue.entries or name in self.damaged:
                continue
            order = self.spool.read(name)
            if order is None:
                self.damaged.add(name)
                print(f"samebits pool: ticket {name} is damaged and left alone", file=sys.stderr, flush=True)
                continue
            folder = Path(order.folder)
            begun = (folder / "worker.json").exists() and not job_folder.warden_alive(folder)
            if begun or not (folder / "request.json").is_file() or (folder / "ended.json").exists():
                self.spool.remove(name)  # ended while no daemon looked, or its folder is gone
                sweep(folder.parent)
                continue
            if adopting:
                sweep(folder.parent)
            self.queue.add(name, order)

    def end(self) -> None:
        """End what runs."""
        self.queue.hang_up()
        until = time.monotonic() + STOP_S
        while time.monotonic() < until and (left := list(self.queue.running())):
            for entry in left:
                if entry.running is not None and entry.running.outcome() is not None:
                    self.spool.remove(entry.id)
                    del self.queue.entries[entry.id]
            time.sleep(BUSY_S)

    def _changed(self, entry: Entry, state: State) -> None:
        if state in job_folder.ENDED:
            self.spool.remove(entry.id)

    def _stop(self, number: int, _: FrameType | None) -> None:
        self.stopping = "leave" if number == signal.SIGUSR1 else "end"
