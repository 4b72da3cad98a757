"""The way from a server or command to the pool's daemon: a folder of tickets, one file per job that has not ended.

A ticket is written whole by a rename, and removed when its job has ended. So nothing is lost when the daemon is killed:
its next start finds the tickets, takes up the jobs whose wardens still run, and queues the others. There is no socket:
whoever can write this folder (mode 0700, this user's) can have jobs run, nobody else can.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs.order import Order, worker_environment
from samebits.server.jobs.queue import write_ended
from samebits.server.jobs.warden import start_of
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from samebits.tools.schema.experiment import Pool as Settings

VARIABLE = "SAMEBITS_POOL"


def default_folder() -> Path:
    """SAMEBITS_POOL, else a folder of this machine in the user's state folder."""
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state, "samebits", f"pool-{socket.gethostname()}")


class Spool:
    """The folder of one daemon."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_folder()
        self.tickets = self.folder / "tickets"

    def daemon(self) -> int | None:
        """Process id of the daemon that runs; None without one."""
        try:
            found = json.loads((self.folder / "daemon.json").read_bytes())
            return int(found["pid"]) if job_folder.alive(int(found["pid"]), str(found["start"])) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def wanted(self, settings: Settings) -> bool:
        """Whether a job of these settings goes to the daemon.

        Raises:
            UserError: it must, and none runs.
        """
        if settings.backend == "embedded":
            return False
        runs = self.daemon() is not None
        if settings.backend == "serve" and not runs:
            raise UserError(
                "pool.backend = 'serve'", "no pool runs", "start `samebits pool serve --detach`, or set 'embedded'"
            )
        return runs

    def put(self, order: Order) -> None:
        """Give the daemon a prepared job folder.

        Raises:
            UserError: the ticket cannot be written.
        """
        order = order.model_copy(update={"env": worker_environment(), "cwd": os.getcwd()})
        path = self.tickets / f"{time.time_ns():020d}-{secrets.token_hex(4)}.json"
        try:
            self._make()
            part = path.with_suffix(".part")
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(order.model_dump_json())
            Path(order.folder, job_folder.TICKET).write_text(str(path), encoding="utf-8")
            part.replace(path)
        except OSError as error:
            raise UserError(str(path), error.strerror or str(error), "make room on the disk") from error

    def names(self) -> list[str]:
        """Tickets there are, oldest first."""
        with suppress(OSError):
            return sorted(name for name in os.listdir(self.tickets) if name.endswith(".json"))
        return []

    def read(self, name: str) -> Order | None:
        """A ticket; None for one that is gone or damaged."""
        try:
            return Order.model_validate_json((self.tickets / name).read_bytes())
        except (OSError, ValidationError):
            return None

    def of_job(self, folder: Path) -> Order | None:
        """The ticket of a job that was given to this daemon."""
        with suppress(OSError):
            path = Path((folder / job_folder.TICKET).read_text(encoding="utf-8"))
            return self.read(path.name) if path.parent == self.tickets else None
        return None

    def remove(self, name: str) -> None:
        """A job has ended."""
        with suppress(OSError):
            (self.tickets / name).unlink()

    def withdraw(self, folder: Path) -> None:
        """End a waiting job of a daemon that does not run: nobody else would look at its mark."""
        if self.daemon() is None and self.of_job(folder) is not None and not (folder / "worker.json").exists():
            self.remove(Path((folder / job_folder.TICKET).read_text(encoding="utf-8")).name)
            write_ended(folder, "stopped")

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Be the daemon.

        Raises:
            UserError: another one runs, or the folder is not this user's alone.
        """
        try:
            self._make()
            descriptor = os.open(self.folder / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UserError(str(self.folder), reason, f"set {VARIABLE} to a folder that can be written") from error
        try:
            self._lock(descriptor)
            note = {"pid": os.getpid(), "start": start_of(os.getpid()), "since": time.time()}
            part = self.folder / "daemon.json.part"
            part.write_text(json.dumps(note), encoding="utf-8")
            part.replace(self.folder / "daemon.json")
            try:
                yield
            finally:
                (self.folder / "daemon.json").unlink(missing_ok=True)
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            reason = f"runs already (process {self.daemon() or '?'}, {self.folder})"
            raise UserError(
                "the pool", reason, "`samebits pool status` shows it, `samebits pool stop` ends it"
            ) from error

    def _make(self) -> None:
        self.tickets.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.folder, self.tickets):
            found = folder.lstat()
            if found.st_uid != os.getuid() or folder.is_symlink():
                raise UserError(str(folder), "is not this user's folder", f"set {VARIABLE} to one that is")
            if found.st_mode & 0o077:
                folder.chmod(0o700)
