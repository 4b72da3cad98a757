"""Ends what a killed warden left behind: processes that carry the name of a job that no warden watches any more."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs.launch import JOB_VARIABLE


def orphans(root: Path) -> list[int]:
    """Processes of jobs under `root` whose warden is gone; a job whose folder is elsewhere is there by its link."""
    folders = {path: path.resolve() for path in root.iterdir() if path.name[0] != "."} if root.is_dir() else {}
    jobs = {os.fsencode(name) for both in folders.items() for name in both}
    mark, found = f"{JOB_VARIABLE}=".encode(), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            for variable in (entry / "environ").read_bytes().split(b"\0"):
                job = variable.removeprefix(mark)
                if job == variable or job not in jobs:
                    continue
                folder = Path(os.fsdecode(job))
                if (folder / "worker.json").exists() and not job_folder.warden_alive(folder):
                    found.append(int(entry.name))
    return found


def sweep(root: Path) -> list[int]:
    """Kill them; returns their ids."""
    found = orphans(root)
    for pid in found:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return found
