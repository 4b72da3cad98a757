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
ctypes.{library}(None).system(b"echo inside; read line")
"""
"""PyDLL keeps Python's lock during a call, CDLL lets it go. What the call starts says that it is going on."""


def beats(folder: Path, library: str, seconds: float) -> int:
    """How often a process in native code still gives a heartbeat, up to 3, within that time."""
    command = [sys.executable, "-c", CODE.format(library=library), str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"inside\n"
        seen, until = {(folder / "heartbeat").stat().st_mtime_ns}, time.monotonic() + seconds
        while len(seen) <= 3 and time.monotonic() < until:
            time.sleep(0.02)
            seen.add((folder / "heartbeat").stat().st_mtime_ns)
        return len(seen) - 1
    finally:
        process.kill()
        process.communicate()


def test_native_code_that_holds_pythons_lock_gives_no_heartbeat(tmp_path: Path) -> None:
    assert beats(tmp_path, "PyDLL", 1.5) <= 1, "one may have been on its way to the disk"


def test_one_that_waits_without_the_lock_gives_it(tmp_path: Path) -> None:
    assert beats(tmp_path, "CDLL", 120) == 3


def test_a_folder_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    ended = beat(tmp_path / "nothing", 0.01)
    time.sleep(0.1)
    ended.set()
