"""The heartbeat of a worker."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from samebits.tools.job.heartbeat import beat

CODE = """import ctypes, pathlib, sys, time
from samebits.tools.job.heartbeat import beat
folder = pathlib.Path(sys.argv[1])
beat(folder, 0.05)
while not (folder / "heartbeat").exists():
    time.sleep(0.01)
print("ready", flush=True)
ctypes.{library}(None).pause()
"""
"""PyDLL keeps Python's lock during a call, CDLL lets it go."""


def beats_on(folder: Path, library: str) -> bool:
    """Whether a process in native code still gives a heartbeat."""
    command = [sys.executable, "-c", CODE.format(library=library), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.5)  # it is in the call by now
        path = folder / "heartbeat"
        first, until = path.stat().st_mtime_ns, time.monotonic() + 1.5
        while path.stat().st_mtime_ns == first and time.monotonic() < until:
            time.sleep(0.02)
        return path.stat().st_mtime_ns != first
    finally:
        process.kill()
        process.communicate()


def test_native_code_that_holds_pythons_lock_gives_no_heartbeat(tmp_path: Path) -> None:
    assert not beats_on(tmp_path, "PyDLL")


def test_one_that_waits_without_the_lock_gives_it(tmp_path: Path) -> None:
    assert beats_on(tmp_path, "CDLL")


def test_a_folder_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    ended = beat(tmp_path / "nothing", 0.01)
    time.sleep(0.1)
    ended.set()
