"""Starts each waiting job when its slot is free and follows it to its end: the pool of a server and the daemon's."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs import launch
from samebits.server.jobs.order import RAY_FILE, worker_environment
from samebits.server.jobs.slots import Held
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from samebits.server.jobs.folder import State
    from samebits.server.jobs.launch import Adopted, Running
    from samebits.server.jobs.order import Order
    from samebits.server.jobs.slots import Slots

RAY_RUNNER = "samebits.server.pool.ray_runner"
RAY_LIMIT = 16
"""Jobs of one queue that are on a Ray cluster at a time: each has a submitter process here, about 150 MiB."""


@dataclass(slots=True)
class Entry:
    """One job that has not ended."""

    id: str
    folder: Path
    order: Order
    running: Running | Adopted | None = None


class Queue:
    """Jobs in the order of their arrival.

    Args:
        lifeline: they end with this process.
        changed: called with a job and its new state.
    """

    def __init__(self, slots: Slots, changed: Callable[[Entry, State], None], *, lifeline: bool = True) -> None:
        self.slots = slots
        self.changed = changed
        self.lifeline = lifeline
        self.entries: dict[str, Entry] = {}

    def add(self, name: str, order: Order) -> Entry:
        """Queue one, under a name that is its own."""
        folder = Path(order.folder)
        entry = self.entries[name] = Entry(name, folder, order)
        if job_folder.warden_alive(folder):
            entry.running = launch.Adopted(folder)
        return entry

    def turn(self) -> None:
        """One look at every job."""
        # Who waits for a GPU lets no later one pass by, or a job that needs several would wait for ever.
        full: set[str] = set()
        for entry in list(self.entries.values()):
            if entry.running is not None:
                if entry.running.outcome() is not None:
                    self._end(entry, job_folder.state(entry.folder, owner_alive=True))
            elif self.end_cancelled(entry):
                continue
            elif (kind := kind_of(entry.order)) not in full and not self._start(entry):
                full.add(kind)

    def hang_up(self) -> None:
        """End what runs: its wardens see to it."""
        for entry in self.running():
            assert entry.running is not None
            entry.running.hang_up()

    def running(self) -> Iterable[Entry]:
        """Jobs that have been started."""
        return [entry for entry in self.entries.values() if entry.running is not None]

    def end_cancelled(self, entry: Entry) -> bool:
        """End a job that has not been started, if somebody asked for that."""
        if not (entry.folder / "cancel").exists():
            return False
        self._end(entry, "cancelled")
        return True

    def leave(self, entry: Entry) -> None:
        """Have no more to do with a job that has not been started: its folder stays as it is."""
        del self.entries[entry.id]

    def _start(self, entry: Entry) -> bool:
        """Start it if its slot is free; a job that cannot be started ends here, with its reason."""
        order = entry.order
        try:
            held = self._take(entry)
            if held is None:
                return False
            ray = order.where == "ray"
            own = worker_environment(ray=ray)
            env = own if order.env is None else order.env | {k: own[k] for k in own if k.startswith("RAY_AUTH_")}
            try:
                if ray:
                    write_order(order)
                entry.running = launch.spawn(
                    entry.folder,
                    python=order.python,
                    # On Ray the node's own warden keeps the limits: waiting for a node is not the job's time.
                    time_limit_s=None if ray else order.time_limit_s,
                    memory_limit_bytes=0 if ray else order.memory_limit_bytes,
                    env=env | held.env,
                    keep=held.descriptors,
                    module=RAY_RUNNER if ray else launch.WORKER,
                    cwd=order.cwd,
                    lifeline=self.lifeline,
                )
            finally:
                held.close()
        except (UserError, OSError) as error:
            write_failure(entry.folder, str(error), "user" if isinstance(error, UserError) else "resource")
            self._end(entry, "failed")
            return True
        self.changed(entry, "running")
        return True

    def _take(self, entry: Entry) -> Held | None:
        if entry.order.where == "here":
            return self.slots.take(entry.order.need, entry.id, entry.folder)
        busy = sum(other.order.where == "ray" for other in self.running())
        return None if busy >= RAY_LIMIT else Held((), (), {})

    def _end(self, entry: Entry, state: State) -> None:
        # Without a warden, a worker or an answer: the machine went down while it was started.
        state = state if state in job_folder.ENDED else "interrupted"
        if state in ("cancelled", "interrupted"):
            write_ended(entry.folder, "stopped" if state == "cancelled" else "owner_gone")
        del self.entries[entry.id]
        self.changed(entry, state)


def kind_of(order: Order) -> str:
    """Jobs of one kind wait for each other."""
    return order.where if order.where == "ray" else order.slot or "gpu"


def write_order(order: Order) -> None:
    """Tell the submitter of a job for Ray what it needs."""
    Path(order.folder, RAY_FILE).write_text(order.model_dump_json(exclude={"env"}), encoding="utf-8")


def write_ended(folder: Path, how: str) -> None:
    """ended.json of a job that no warden ended."""
    if not (folder / "ended.json").exists():
        _write(folder / "ended.json", f'{{"how": "{how}", "code": 0, "stuck": [], "limit_s": 0.0}}')


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
        with suppress(OSError):
            part.unlink(missing_ok=True)
