"""Stands over one worker, so that nothing it started outlives its job: run by path, with the standard library alone.

    python -I -S warden.py '{"folder": ..., "command": [...], ...}'     (standard input: the owner's lifeline)

The owner (server or command line) holds the other end of standard input. When that closes, however the owner died, the
worker is ended; HUP says the same. A byte in it asks for the end as TERM does: it is heard however early it comes. With
"lifeline" false (the pool's daemon, which adopts its jobs when it is started anew) standard input is not looked at.
With "detach" the warden leaves its parent, so that one that kills its children does not reach it. A folder has one
warden in its life: a second one ends at once. The warden also ends the worker at a time or memory limit, on TERM, and
when a file `cancel` appears in the job folder. It then kills what is left of the worker's processes (it is their
subreaper, so none can slip away), and writes ended.json: {"how": "exited" | "stopped" | "owner_gone" | "time_limit" |
"memory_limit" | "no_heartbeat", "code": int, "stuck": [[pid, its start]], "slots": [name], "limit_s": float, "phase":
str, "disk_full": bool}. A stuck process would not die (it waits in a driver) and holds the slots.
Limits of a phase stand in request.json ([pool] of its experiment); the worker's events say which phase it is in.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

POLL_S = 0.1
MEMORY_EVERY_S = 0.5
KILL_WAIT_S = 10.0
LOG_LIMIT_BYTES = 8 << 20
"""At this size log.txt becomes log.1.txt and a new one is begun: a flood keeps its last 8 to 16 MiB."""
SILENCE_S = 600
"""Where the request has no [pool]: the default of heartbeat_limit_s."""
ENDED_BYTES, FULL_BYTES = 4096, 64 << 10
HOLD = """
import json, sys, time

def start(pid):
    try:
        fields = open(f"/proc/{pid}/stat", errors="replace").read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]

while any(start(pid) == begun for pid, begun in json.loads(sys.argv[1])):
    time.sleep(1)
"""
"""Keeps the slots of a job while processes of it live that would not die: they may still use the device."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class Log:
    """log.txt of a job, fed from the worker's pipe and bounded in size."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "log.txt"
        self.file = self.path.open("ab", buffering=0)

    def write(self, data: bytes) -> None:
        try:
            if self.file.tell() > LOG_LIMIT_BYTES:
                self.file.close()
                self.path.replace(self.path.with_name("log.1.txt"))
                self.file = self.path.open("ab", buffering=0)
            self.file.write(data)
        except OSError:
            pass  # a full disk must not end the watch


def processes() -> dict[int, int]:
    """Parent by process, of all that can be seen."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path("/proc", name, "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            found[int(name)] = int(stat.rpartition(")")[2].split()[1])
    return found


def descendants() -> list[int]:
    """Every living process below this one. Orphans of the worker count: their parent is this subreaper."""
    parents = processes()
    family, grown = {os.getpid()}, True
    while grown:
        more = {child for child, parent in parents.items() if parent in family} - family
        family |= more
        grown = bool(more)
    return sorted(family - {os.getpid()})


def memory_bytes(pids: list[int]) -> int:
    """Memory that is in RAM and not a file's, summed; a page that two of them share counts twice.

    As in tools/sandbox/processes.py, which cannot be imported here; a test holds the two in step.
    """
    total = 0
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for line in status.splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += int(line.split()[1]) << 10
    return total


def slots_of(descriptors: list[int]) -> list[str]:
    """Names of the slots whose locks these are."""
    found = []
    for descriptor in descriptors:
        with suppress(OSError):
            found.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).stem)
    return found


def disk_is_full(folder: Path) -> bool:
    """Whether less is free than an answer may take."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < FULL_BYTES


def die_with_parent() -> None:
    """In the worker, before exec: KILL when the warden itself is killed. The warden has one thread, so this is safe."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Phases:
    """The phase that the worker is in, since when, and the limits of phases."""

    def __init__(self, folder: Path) -> None:
        self.events, self.beat = folder / "events.jsonl", folder / "heartbeat"
        try:
            pool = json.loads((folder / "request.json").read_bytes())["experiment"]["pool"]
        except (OSError, ValueError, KeyError, TypeError):
            pool = {}
        self.times: dict[str, float] = pool.get("phase_time_limit_s", {})
        self.memories: dict[str, int] = pool.get("phase_memory_limit_mib", {})
        self.silence_s: float = pool.get("heartbeat_limit_s", SILENCE_S)
        self.renewed, self.heard = 0, time.monotonic()
        self.name, self.since, self.offset = "", time.monotonic(), 0

    def look(self) -> None:
        """Read the events that are new."""
        try:
            with self.events.open("rb") as file:
                file.seek(self.offset)
                whole = file.read(1 << 20).rpartition(b"\n")[0]
            self.offset += len(whole) + 1 if whole else 0
            name = str(json.loads(whole.rpartition(b"\n")[2])["phase"]) if whole else self.name
        except (OSError, ValueError, KeyError, TypeError):
            return
        if name != self.name:
            self.name, self.since = name, time.monotonic()

    @property
    def time_limit_s(self) -> float:
        """Of this phase; 0: none."""
        return self.times.get(self.name, self.times.get("*", 0.0))

    @property
    def memory_limit_bytes(self) -> int:
        """Of this phase; 0: none."""
        return self.memories.get(self.name, self.memories.get("*", 0)) << 20

    def is_silent(self) -> bool:
        """Whether the worker has given no heartbeat for too long.

        By this process's own watch: a clock that is set, or a machine that slept, is no silence.
        """
        try:
            renewed = self.beat.stat().st_mtime_ns
        except OSError:
            return False  # it has not begun yet: the time limit holds
        if renewed != self.renewed:
            self.renewed, self.heard = renewed, time.monotonic()
        return bool(self.silence_s) and time.monotonic() - self.heard > self.silence_s


class Warden:
    """One worker under watch. Its process is not there before `start`."""

    worker: subprocess.Popen[bytes]

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.folder = Path(spec["folder"])
        self.time_limit_s: float = spec["time_limit_s"]
        self.memory_limit_bytes: int = spec["memory_limit_bytes"]
        self.grace_s: float = spec["grace_s"]
        self.keep: list[int] = spec["keep"]
        self.reason = ""
        self.phases = Phases(self.folder)
        self.passed = ("", self.time_limit_s)
        """Phase ("": the whole job) and seconds of the limit that was passed."""
        self.log = Log(self.folder)
        self.part = self.folder / "ended.json.part"
        self.started = time.monotonic()
        self.next_memory = 0.0

    def start(self) -> None:
        """Start the worker. Whoever is to hear signals has set their handlers by now: what it starts dies with it."""
        self.reserve()
        self.output, write_end = os.pipe()
        os.set_blocking(self.output, False)
        self.worker = subprocess.Popen(
            self.spec["command"],
            stdin=subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            start_new_session=True,
            pass_fds=self.keep,
            preexec_fn=die_with_parent,
        )
        os.close(write_end)
        self.started = time.monotonic()
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.output, selectors.EVENT_READ)
        self.exit = os.pidfd_open(self.worker.pid)
        self.selector.register(self.exit, selectors.EVENT_READ)
        if self.spec["lifeline"]:
            self.selector.register(0, selectors.EVENT_READ)

    def reserve(self) -> None:
        """Take the room of ended.json now: how a job ended is told also when the disk is full by then."""
        with suppress(OSError):
            self.part.write_bytes(b" " * ENDED_BYTES)

    def request_stop(self, *_: object) -> None:
        """Signal handler."""
        self.reason = self.reason or "stopped"

    def hang_up(self, *_: object) -> None:
        """Signal handler: the owner is gone."""
        self.reason = self.reason or "owner_gone"

    def listen(self) -> None:
        """Take in what the worker printed and what the owner says, for at most POLL_S."""
        for key, _ in self.selector.select(POLL_S):
            if key.fd == self.output:
                data = os.read(self.output, 1 << 16)
                if data:
                    self.log.write(data)
                else:
                    self.selector.unregister(self.output)
            elif key.fd == self.exit:
                self.selector.unregister(self.exit)
            elif os.read(0, 64):
                self.request_stop()
            else:
                self.reason = self.reason or "owner_gone"
                self.selector.unregister(0)

    def over_limit(self) -> str:
        """Name of the limit that is passed; "" for none."""
        now, phases = time.monotonic(), self.phases
        if self.time_limit_s and now - self.started > self.time_limit_s:
            return "time_limit"
        phases.look()
        if phases.time_limit_s and now - phases.since > phases.time_limit_s:
            self.passed = (phases.name, phases.time_limit_s)
            return "time_limit"
        if phases.is_silent():
            self.passed = (phases.name, phases.silence_s)
            return "no_heartbeat"
        if (self.memory_limit_bytes or phases.memory_limit_bytes) and now >= self.next_memory:
            self.next_memory = now + MEMORY_EVERY_S
            used = memory_bytes(descendants())
            if self.memory_limit_bytes and used > self.memory_limit_bytes:
                return "memory_limit"
            if phases.memory_limit_bytes and used > phases.memory_limit_bytes:
                self.passed = (phases.name, self.time_limit_s)
                return "memory_limit"
        return ""

    def watch(self) -> None:
        """Until the worker ends by itself or is asked to."""
        while self.worker.poll() is None and not self.reason:
            self.listen()
            if not self.reason:
                self.reason = "stopped" if (self.folder / "cancel").exists() else self.over_limit()
        if self.worker.poll() is None:
            self.worker.terminate()
            # A worker over its memory limit, or without an owner, is not given long.
            grace = self.grace_s if self.reason in ("stopped", "time_limit") else min(self.grace_s, 5.0)
            until = time.monotonic() + grace
            while self.worker.poll() is None and time.monotonic() < until:
                self.listen()

    def sweep(self) -> list[int]:
        """Kill everything that is left; returns what would not die (a process stuck in a driver)."""
        until = time.monotonic() + KILL_WAIT_S
        while (left := descendants()) and time.monotonic() < until:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.worker.poll()
            while self.worker.returncode is not None:
                try:
                    if os.waitpid(-1, os.WNOHANG)[0] == 0:
                        break
                except ChildProcessError:
                    break
            time.sleep(0.01)
        for _ in range(1000):  # what was printed last; bounded, as a stuck process may hold the pipe
            try:
                data = os.read(self.output, 1 << 16)
            except BlockingIOError:
                break
            if not data:
                break
            self.log.write(data)
        return left

    def hold(self, stuck: list[list[Any]]) -> None:
        """Leave the slots to a process that outlives this one, without the job's name: no sweep ends it."""
        with suppress(OSError):
            subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", HOLD, json.dumps(stuck)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=self.keep,
                env={},
                start_new_session=True,
            )

    def finish(self) -> None:
        """Write ended.json, whole or not at all."""
        stuck: list[list[Any]] = [[pid, start] for pid in self.sweep() if (start := start_if_there(pid))]
        if stuck and self.keep:
            self.hold(stuck)
        ended = {
            "how": self.reason or "exited",
            "code": self.worker.returncode,
            "stuck": stuck,
            "slots": slots_of(self.keep),
            "limit_s": self.passed[1],
            "phase": self.passed[0],
            "disk_full": disk_is_full(self.folder),
        }
        with open(self.part, "r+b" if self.part.exists() else "wb") as file:
            file.write(json.dumps(ended).encode().ljust(ENDED_BYTES))
        self.part.replace(self.folder / "ended.json")


def start_of(pid: int) -> str:
    """When a process started, in the kernel's ticks: with the pid it names one process for good.

    Raises:
        OSError: there is none, or it has ended and nobody has asked how (in a container perhaps nobody ever does).
    """
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    if fields[0] in "ZX":
        raise ProcessLookupError(pid)
    return fields[19]


def start_if_there(pid: int) -> str:
    """Its start; "" when it has gone meanwhile."""
    try:
        return start_of(pid)
    except OSError:
        return ""


def main() -> None:
    """Entry point."""
    spec = json.loads(sys.argv[1])
    if spec["detach"] and os.fork():
        os._exit(0)
    try:
        os.close(os.open(Path(spec["folder"], "started"), os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        sys.exit(3)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    warden = Warden(spec)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, warden.request_stop)
    signal.signal(signal.SIGHUP, warden.hang_up)
    warden.start()
    pids = {"warden": os.getpid(), "warden_start": start_of(os.getpid()), "worker": warden.worker.pid}
    part = warden.folder / "worker.json.part"
    part.write_text(json.dumps(pids), encoding="utf-8")
    part.replace(warden.folder / "worker.json")
    try:
        warden.watch()
    finally:
        warden.finish()


if __name__ == "__main__":
    main()
