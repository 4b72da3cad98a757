"""Programs and warpgroups of a Gluon kernel on the host (gluon_on_host.py): threads of which one runs at a time, chosen
at random of those that may.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any


class Fault(AssertionError):
    """What a schedule shows to be wrong."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Fault(what)


@dataclass(slots=True)
class Thread:
    """A warpgroup or a producer's warp: it runs until it pauses, and goes on when it is chosen and `ready`."""

    name: str
    program: int
    weight: int = 1
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ready: Callable[[], bool] | None = None
    done: bool = False
    products: list[Any] = field(default_factory=list)
    allocated: list[str] = field(default_factory=list)


class World:
    """What the programs of one launch share, and who runs next.

    planted: "wait NAME BAR", "parity NAME BAR", "arrive NAME BAR" or "turn WORD NAME": what warpgroup NAME leaves out;
    "lane NAME": it asks the thread beside the right one.
    """

    def __init__(self, random: Random, size: int, box: int, programs: int, planted: str) -> None:
        self.random, self.size, self.box, self.programs, self.planted = random, size, box, programs, planted
        self.tickets, self.fault = 0, ""
        self.threads: list[Thread] = []
        self.landing: list[Callable[[], None]] = []
        self.named: dict[tuple[int, str], SimpleNamespace] = {}
        self.stored: dict[tuple[int, int, int], Any] = {}
        self.back = threading.Semaphore(0)
        self.now = Thread("launch", 0)
        self.interned: dict[Any, int] = {}

    def spawn(self, name: str, function: Any, arguments: tuple[Any, ...]) -> None:
        thread = Thread(name, self.now.program, self.random.choice((1, 1, 5, 25)))

        def body() -> None:
            thread.go.acquire()
            try:
                function(*arguments)
            except Fault as fault:
                self.fault = self.fault or f"{name}: {fault}"
            except Exception as error:
                self.fault = self.fault or f"{name}: {error!r}"
            thread.done = True
            self.back.release()

        self.threads.append(thread)
        threading.Thread(target=body, daemon=True).start()

    def pause(self, ready: Callable[[], bool] | None = None) -> None:
        thread = self.now
        thread.ready = ready
        self.back.release()
        thread.go.acquire()
        require(not self.fault, "another one failed")

    def run(self) -> str:
        """All threads to their end; the first fault."""
        while live := [thread for thread in self.threads if not thread.done]:
            ready = [t for t in live if self.fault or t.ready is None or t.ready()]
            if not ready and not self.landing:
                self.fault = self.fault or f"deadlock of {[t.name for t in live]}"
            elif self.landing and (not ready or self.random.random() < self.random.choice((0.05, 0.5))):
                self.landing.pop(self.random.randrange(len(self.landing)))()
            else:
                self.now = self.random.choices(ready, [t.weight for t in ready])[0]
                self.now.go.release()
                self.back.acquire()
        left = self.landing or any(barrier.arrived for barrier in self.named.values())
        return self.fault or ("loads or arrivals are left" if left else "")


W: World
"""The launch that is run."""
