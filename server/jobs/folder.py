"""What a job folder says about its job: state, outcome, last event. The folder is the truth, the index a list of it."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from samebits.server.jobs.warden import start_of
from samebits.tools.schema.results import OUTCOME, Cancelled, Event, Failed, Outcome, Succeeded, TimedOut

State = Literal["queued", "running", "succeeded", "failed", "cancelled", "timed_out", "interrupted"]
ENDED: frozenset[State] = frozenset(("succeeded", "failed", "cancelled", "timed_out", "interrupted"))
TAIL_BYTES = 1 << 16
SILENT_S = 15.0
"""A worker gives a heartbeat every 2 s."""
TICKET = "ticket"
"""File of a job that was given to the pool's daemon: the path of its ticket there."""


def outcome(folder: Path) -> Outcome:
    """How a job whose worker has ended came out, and what of it would not die."""
    found, left = _outcome(folder), stuck(folder)
    if not left:
        return found
    if isinstance(found, Succeeded):
        summary = f"{found.result.summary} Mind: {left}."
        return found.model_copy(update={"result": found.result.model_copy(update={"summary": summary})})
    if isinstance(found, Failed):
        return found.model_copy(update={"message": f"{found.message}. Mind: {left}"})
    return found.model_copy(update={"note": left})


def stuck(folder: Path) -> str:
    """Processes of an ended job that no signal ends, and the devices that they keep from others; "" for none."""
    ended = _read(folder / "ended.json")
    pids = [pid for pid, start in ended.get("stuck", []) if alive(pid, start)]
    if not pids:
        return ""
    holds = f" and {'holds' if len(pids) == 1 else 'hold'} {', '.join(ended['slots'])}" if ended.get("slots") else ""
    which = "process" if len(pids) == 1 else "processes"
    return f"{which} {', '.join(map(str, pids))} of ended job {folder.name} cannot be killed{holds}"


def _outcome(folder: Path) -> Outcome:
    ended = _read(folder / "ended.json")
    how, code = ended.get("how"), ended.get("code", 0)
    written = _written(folder)
    if written is not None and not isinstance(written, Cancelled):
        return written
    if how == "time_limit":
        return TimedOut(limit_s=float(ended.get("limit_s", 0.0)), phase=str(ended.get("phase", "")))
    if how == "no_heartbeat":
        silent = f"no heartbeat for {float(ended.get('limit_s', 0.0)):.0f} s (pool.heartbeat_limit_s)"
        message = f"the worker gave {silent} in phase {ended.get('phase') or 'start'!r}, hangs, and was ended"
        return Failed(error="internal", message=f"{message}. Next: read the end of {folder / 'log.txt'}; run it again")
    if how == "memory_limit":
        phase = str(ended.get("phase", ""))
        key = f"pool.phase_memory_limit_mib allows in phase {phase!r}" if phase else "pool.memory_limit_mib allows"
        message = f"the job used more memory than {key} and was ended"
        return Failed(
            error="resource", message=f"{message}. Next: ask for less work (workload, capture.sequences), or raise it"
        )
    if written is not None or how in ("stopped", "owner_gone"):
        return Cancelled()
    if ended.get("disk_full"):
        message = f"the disk of {folder} is full, so the worker could not answer"
        return Failed(error="resource", message=f"{message}. Next: make room (`samebits gc`), then run it again")
    if not ended:
        return Failed(error="internal", message="the job's warden was killed. Next: run it again")
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return Failed(
        error="internal", message=f"the worker {how} before it could answer. Next: read the end of {folder / 'log.txt'}"
    )


def state(folder: Path, *, owner_alive: bool) -> State:
    """State by the files alone. `owner_alive`: whoever queued it lives, so a folder without a worker waits."""
    if (folder / "ended.json").is_file() or ((folder / "result.json").is_file() and not warden_alive(folder)):
        how = _read(folder / "ended.json").get("how")
        found = outcome(folder).state
        return "interrupted" if found == "cancelled" and how == "owner_gone" else found
    if warden_alive(folder):
        return "running"
    waits = owner_alive or has_ticket(folder)
    return "queued" if waits and not (folder / "worker.json").exists() else "interrupted"


def never_started(folder: Path) -> bool:
    """Whether a job of a server that is gone still waits for its first start. What the daemon was given waits there."""
    marks = ("started", "worker.json", "ended.json", "result.json", "cancel", TICKET)
    return not any((folder / name).exists() for name in marks)


def has_ticket(folder: Path) -> bool:
    """Whether the pool's daemon, running or to be started, will carry it out (see server/pool/spool.py)."""
    try:
        return Path((folder / TICKET).read_text(encoding="utf-8")).is_file()
    except OSError:
        return False


def warden_alive(folder: Path) -> bool:
    """Whether the job's warden, that very process, runs."""
    pids = _read(folder / "worker.json")
    return bool(pids) and alive(int(pids["warden"]), str(pids["warden_start"]))


def alive(pid: int, start: str) -> bool:
    """Whether this process runs and is not another one with the same pid."""
    try:
        return start_of(pid) == start
    except OSError:
        return False


def signal_warden(folder: Path, number: int) -> None:
    """Send a job's warden a signal; nothing when it is gone."""
    if warden_alive(folder):
        with suppress(ProcessLookupError):
            os.kill(int(_read(folder / "worker.json")["warden"]), number)


def mark_cancelled(folder: Path) -> None:
    """Ask for the end: the warden of a running job looks for this file, the pool before it starts a queued one."""
    (folder / "cancel").touch()


def last_event(folder: Path) -> Event | None:
    """The newest whole line of events.jsonl."""
    try:
        with (folder / "events.jsonl").open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return None
    for line in reversed(lines):
        try:
            return Event.model_validate_json(line)
        except ValidationError:
            continue
    return None


def silent_s(folder: Path) -> float:
    """Seconds since the worker's last heartbeat; 0 when it is younger than is worth a word, or none is kept."""
    try:
        age = time.time() - (folder / "heartbeat").stat().st_mtime
    except OSError:
        return 0.0
    return age if age > SILENT_S else 0.0


def size_bytes(folder: Path) -> int:
    """Bytes on disk below a folder; links are not followed."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                continue
    return total


def _written(folder: Path) -> Outcome | None:
    path = folder / "result.json"
    if not path.is_file():
        return None
    try:
        return OUTCOME.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        message = f"{path} is damaged. Next: run the job again"
        return Failed(error="internal", message=message)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
