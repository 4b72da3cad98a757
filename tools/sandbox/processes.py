"""Processes below one: who they are, what they hold, and their end."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

KILL_WAIT_S = 10.0


def parents() -> dict[int, int]:
    """Parent by process, of all living processes that can be seen."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                stat = Path("/proc", name, "stat").read_text(encoding="utf-8", errors="replace")
                state, parent = stat.rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    found[int(name)] = int(parent)
    return found


def below(root: int) -> set[int]:
    """Living descendants of a process, itself excluded."""
    listed = parents()
    family, grown = {root}, True
    while grown:
        more = {child for child, parent in listed.items() if parent in family} - family
        family |= more
        grown = bool(more)
    return family - {root}


def memory_bytes(pids: set[int]) -> int:
    """Memory that is in RAM and not a file's, summed."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
                if line.startswith(("RssAnon:", "RssShmem:")):
                    total += int(line.split()[1]) << 10
    return total


def kill_below(root: int, spared: set[int]) -> set[int]:
    """Kill every descendant but those spared, also those that are started meanwhile; returns what would not die in
    time.
    """
    until = time.monotonic() + KILL_WAIT_S
    while (left := below(root) - spared) and time.monotonic() < until:
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: none can start another while others are killed
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        time.sleep(0.01)
    return left


def folder_bytes(folder: Path) -> int:
    """Bytes on disk below a folder; links are not followed."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_blocks << 9
    return total


def machine_memory_bytes() -> int:
    """Memory of this machine, or of this container where that is less."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            found = min(found, int(Path("/sys/fs/cgroup", name).read_text(encoding="ascii")))
    return found
