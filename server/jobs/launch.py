"""Starts the worker on a job folder and follows it. The same call serves the command line and the server."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.tools.schema.errors import UserError
from samebits.tools.schema.results import OUTCOME, Event, Failed, TimedOut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from samebits.tools.schema.requests import Request
    from samebits.tools.schema.results import Outcome

GRACE_S = 25.0
"""How long a worker may take to close its sides after SIGTERM before its whole group is killed."""


def new_folder(root: Path, kind: str) -> Path:
    """A fresh job folder name under `root`: time, verb, and a few random letters."""
    return root / f"{time.strftime('%Y%m%d-%H%M%S')}-{kind}-{secrets.token_hex(2)}"


@dataclass(slots=True)
class Running:
    """A started worker."""

    folder: Path
    process: subprocess.Popen[bytes]
    deadline: float | None = None
    limit_s: float = 0.0
    _offset: int = 0

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
                yield Event.model_validate_json(line)

    def stop(self) -> None:
        """End the worker and everything it started: TERM to the worker, then KILL to its group."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def outcome(self) -> Outcome | None:
        """How it ended; None while it runs. Enforces the time limit."""
        if self.process.poll() is None:
            if self.deadline is None or time.monotonic() < self.deadline:
                return None
            self.stop()
            return TimedOut(limit_s=self.limit_s)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # whatever the worker left behind
        path = self.folder / "result.json"
        if path.exists():
            return OUTCOME.validate_json(path.read_text(encoding="utf-8"))
        code = self.process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return Failed(error="internal", message=f"the worker {how} before it could answer. Next: read the end of {self.folder / 'log.txt'}")


def start(request: Request, folder: Path, *, python: str = "", time_limit_s: float | None = None) -> Running:
    """Write the request and start its worker in a process group of its own.

    Raises:
        UserError: the folder exists or cannot be made, or the interpreter cannot be run.
    """
    try:
        folder.mkdir(parents=True, exist_ok=False)
        (folder / "request.json").write_text(request.model_dump_json(indent=1), encoding="utf-8")
        with (folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                [python or sys.executable, "-m", "samebits.tools.worker", str(folder)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )
    except FileExistsError as error:
        raise UserError(str(folder), "this job folder exists already", "give another --out") from error
    except OSError as error:
        raise UserError(str(error.filename or folder), error.strerror or str(error), "check the path, the disk and pool.worker_python") from error
    deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
    return Running(folder, process, deadline, time_limit_s or 0.0)
