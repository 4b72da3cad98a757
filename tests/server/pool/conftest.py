"""A pool's daemon in a folder of the test's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from samebits.server.pool.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# A worker that does not answer TERM is killed after half a second here, 25 in earnest.
DAEMON = """
from samebits.server.jobs import launch
launch.GRACE_S = 0.5
from samebits.server.cli.main import main
main()
"""


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spool:
    """The folder; every command and server of the test uses it."""
    monkeypatch.setenv("SAMEBITS_POOL", str(tmp_path / "state"))
    monkeypatch.setenv("SAMEBITS_LOCKS", str(tmp_path / "locks"))
    return Spool()


@pytest.fixture
def daemon(spool: Spool, eventually: Callable[..., None]) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """daemon(): start one. All are killed at the end, and what they left is ended."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", DAEMON, "pool", "serve"], stderr=subprocess.DEVNULL)
        started.append(process)
        eventually(lambda: spool.daemon() == process.pid)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
    for name in spool.names():
        if (order := spool.read(name)) is not None:
            end_warden(Path(order.folder))


def end_warden(folder: Path) -> None:
    """End a job nobody owns."""
    from samebits.server.jobs import folder as job_folder

    with suppress(OSError):
        job_folder.signal_warden(folder, signal.SIGTERM)


def samebits(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    command = [sys.executable, "-m", "samebits.server.cli.main", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=dict(os.environ))
