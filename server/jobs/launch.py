"""Starts the worker on a job folder and follows it. The same call serves the command line and the server."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs import hidden
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.results import Event

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from samebits.tools.schema.requests import Request
    from samebits.tools.schema.results import Outcome

GRACE_S = 25.0
"""How long a worker may take to close its sides after SIGTERM before everything it started is killed."""
JOB_VARIABLE = "SAMEBITS_JOB"
"""Set for a job's processes to its folder: what a killed warden left behind is known by it."""
WORKER = "samebits.tools.worker"
WARDEN = Path(__file__).with_name("warden.py")


def new_folder(root: Path, kind: str) -> Path:
    """A fresh job folder name under `root`: time, verb, and a few random letters."""
    return root / f"{time.strftime('%Y%m%d-%H%M%S')}-{kind}-{secrets.token_hex(4)}"


@dataclass(slots=True)
class Watched:
    """A job whose folder is followed."""

    folder: Path
    _offset: int = field(default=0, init=False)

    def events(self) -> Iterator[Event]:
        """Events written since the last call."""
        path = self.folder / "events.jsonl"
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                with suppress(ValueError):
                    yield Event.model_validate_json(line)


@dataclass(slots=True)
class Adopted(Watched):
    """A job that another process started, while its warden lives."""

    def outcome(self) -> Outcome | None:
        """How it ended; None while it runs."""
        return None if job_folder.warden_alive(self.folder) else job_folder.outcome(self.folder)

    def hang_up(self) -> None:
        """The owner goes: the warden ends the worker, and the job counts as interrupted."""
        job_folder.signal_warden(self.folder, signal.SIGHUP)


@dataclass(slots=True)
class Running(Watched):
    """A worker that this process started, under its warden (see warden.py)."""

    process: subprocess.Popen[bytes]

    def ask_to_stop(self) -> None:
        """Ask for the end without waiting for it. By the lifeline where there is one: TERM would kill a warden that has
        just been started.
        """
        if self.process.stdin is None or self.process.stdin.closed:
            with suppress(ProcessLookupError):
                self.process.terminate()
        else:
            with suppress(OSError):
                os.write(self.process.stdin.fileno(), b"x")

    def stop(self) -> None:
        """End the worker and everything it started: TERM to the worker, then KILL to all that is left."""
        self.ask_to_stop()
        self.process.wait()
        self._close()

    def hang_up(self) -> None:
        """The owner goes: the warden ends the worker, and the job counts as interrupted."""
        if self.process.stdin is not None:
            self._close()
        else:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGHUP)

    def outcome(self) -> Outcome | None:
        """How it ended; None while it runs."""
        if self.process.poll() is None or job_folder.warden_alive(self.folder):
            return None
        self._close()
        return job_folder.outcome(self.folder)

    def _close(self) -> None:
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()


def prepare(request: Request, folder: Path) -> None:
    """Make the job folder and write the request.

    Raises:
        UserError: the folder exists or cannot be made.
    """
    made = False
    try:
        hidden.make(folder.parent)
        folder.mkdir()
        made = True
        part = folder / "request.json.part"
        part.write_text(request.model_dump_json(indent=1), encoding="utf-8")
        part.replace(folder / "request.json")
    except OSError as error:
        if not made and isinstance(error, FileExistsError) and os.path.lexists(folder):
            raise UserError(str(folder), "this job folder exists already", "give another --out") from error
        if made:
            shutil.rmtree(folder, ignore_errors=True)  # a full disk: half a request is no job
        raise UserError(
            str(error.filename or folder), error.strerror or str(error), "check the path and the disk"
        ) from error


def spawn(
    folder: Path,
    *,
    python: str = "",
    time_limit_s: float | None = None,
    memory_limit_bytes: int = 0,
    env: Mapping[str, str] | None = None,
    keep: tuple[int, ...] = (),
    module: str = WORKER,
    cwd: str | None = None,
    lifeline: bool = True,
    detach: bool = False,
) -> Running:
    """Start the worker of a prepared folder, with a process group of its own.

    Args:
        env: the worker's whole environment; None: this process's.
        keep: descriptors the warden and the worker hold as long as they live (the locks of their slots).
        module: what is run on the folder: the worker, or what has it run elsewhere.
        cwd: working directory; None: this process's.
        lifeline: the job ends with this process.
        detach: the warden is no child of this process; its `process` has ended when this returns.

    Raises:
        UserError: the interpreter cannot be run.
    """
    interpreter = (python if module == WORKER else "") or sys.executable
    if not os.access(interpreter, os.X_OK):
        raise UserError(interpreter, "not an interpreter that can be run", "correct pool.worker_python")
    spec = {
        "folder": str(folder),
        "command": [interpreter, "-m", module, str(folder)],
        "keep": list(keep),
        "time_limit_s": time_limit_s or 0.0,
        "memory_limit_bytes": memory_limit_bytes,
        "grace_s": GRACE_S,
        "lifeline": lifeline,
        "detach": detach,
    }
    try:
        process = _warden(folder, spec, env, keep, cwd)
    except OSError as error:
        raise UserError(
            str(folder), f"no process can be started: {error}", "see what is full: memory, disk, processes"
        ) from error
    return Running(folder, process)


def _warden(
    folder: Path, spec: dict[str, object], env: Mapping[str, str] | None, keep: tuple[int, ...], cwd: str | None
) -> subprocess.Popen[bytes]:
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(WARDEN), json.dumps(spec)],
            stdin=subprocess.PIPE if spec["lifeline"] else subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=keep,
            env=dict(os.environ if env is None else env) | {JOB_VARIABLE: str(folder)},
            cwd=cwd,
        )
    if spec["detach"]:
        process.wait()
    return process


def memory_limit_bytes(request: Request) -> int:
    """pool.memory_limit_mib of the request's experiment; 0: none."""
    experiment = getattr(request, "experiment", None)
    return 0 if experiment is None else experiment.pool.memory_limit_mib << 20


def start(
    request: Request,
    folder: Path,
    *,
    python: str = "",
    time_limit_s: float | None = None,
    env: Mapping[str, str] | None = None,
    keep: tuple[int, ...] = (),
) -> Running:
    """Write the request and start its worker (env and keep: as `spawn` has them).

    Raises:
        UserError: the folder exists or cannot be made, or the interpreter cannot be run.
    """
    prepare(request, folder)
    limit = memory_limit_bytes(request)
    return spawn(folder, python=python, time_limit_s=time_limit_s, memory_limit_bytes=limit, env=env, keep=keep)
