"""A Ray job on its node: an actor that takes inputs in, runs the worker under a warden, and gives the artifacts out.

It imports nothing of Ray. Its methods are called one after the other by the submitter (ray_runner.py).
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs import launch
from samebits.server.jobs.order import worker_environment
from samebits.server.jobs.slots import Need, Slots, default_folder
from samebits.server.pool.content import File, Store, listing
from samebits.tools.schema.results import OUTCOME

VARIABLE = "SAMEBITS_NODE"
STALE_S = 3600.0
START_S = 20.0
OURS = frozenset(
    "request.json result.json events.jsonl log.txt log.1.txt started worker.json ended.json cancel heartbeat".split()  # noqa: SIM905
)
"""Files of a job folder that are about the job, not made by its verb."""


def default_root() -> Path:
    """SAMEBITS_NODE, else a folder of the user's cache."""
    named = os.environ.get(VARIABLE)
    return (
        Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "samebits", "node")
    )


class Node:
    """One job on this node."""

    def __init__(self, name: str, gpus: int) -> None:
        root = default_root()
        self.store = Store(root / "store")
        self.store.collect()
        self.gpus = gpus
        (root / "work").mkdir(parents=True, exist_ok=True, mode=0o700)
        collect(root / "work")
        self.work = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root / "work"))
        self.job = self.work / "job"
        self.parts: dict[str, Path] = {}
        self.running: launch.Running | None = None

    def hello(self) -> dict[str, Any]:
        """What answers here."""
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return {"host": socket.gethostname(), "samebits": version("samebits"), "python": python, "work": str(self.work)}

    def missing(self, wanted: list[tuple[str, int]]) -> list[str]:
        """Digests of what this node's store lacks."""
        return [sha256 for sha256, size in dict(wanted).items() if not self.store.has(sha256, size)]

    def receive(self, sha256: str, data: bytes) -> None:
        """The next piece of a file."""
        part = self.parts.setdefault(sha256, self.store.begin(sha256))
        with part.open("ab") as file:
            file.write(data)

    def seal(self, sha256: str) -> None:
        """A file is whole.

        Raises:
            Damaged: it is not what was named.
        """
        part = self.parts.pop(sha256, None) or self.store.begin(sha256)
        part.touch()
        self.store.seal(part, sha256)

    def begin(self, request: str, inputs: list[File], limits: dict[str, Any]) -> bool:
        """Put the job folder together and start its worker; False while another job has this node's GPUs.

        Args:
            request: request.json, its paths those of `inputs` below `work`/inputs.
            inputs: what the store holds by now, and where it goes.
            limits: python, time_limit_s, memory_limit_bytes.

        Raises:
            UserError: no such interpreter here.
        """
        slots = Slots(default_folder())
        need = Need(gpus=self.gpus if slots.available else 0)
        held = slots.take(need, self.work.name, self.job)
        if held is None:
            return False
        try:
            for file in inputs:
                self.store.place(file, self.work / "inputs")
            self.job.mkdir()
            (self.job / "request.json").write_text(request, encoding="utf-8")
            env = worker_environment() | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | (held.env if need.gpus else {})
            if not self.gpus:
                env["CUDA_VISIBLE_DEVICES"] = ""
            keep = held.descriptors
            self.running = launch.spawn(self.job, **limits, env=env, keep=keep, cwd=str(self.work), detach=True)
        finally:
            held.close()
        until = time.monotonic() + START_S
        while not (self.job / "worker.json").exists() and time.monotonic() < until:
            time.sleep(0.01)
        return True

    def poll(self, events: int, log: int) -> dict[str, Any]:
        """What was written since: to events.jsonl and log.txt after these places; whether it has ended, with how."""
        ended = not job_folder.warden_alive(self.job)
        answer: dict[str, Any] = {"events": tail(self.job / "events.jsonl", events), "log": b"", "outcome": None}
        size = (self.job / "log.txt").stat().st_size
        # Begun anew after a flood: what is in log.1.txt by now was not read, and is not missed.
        answer["log_from"] = log if log <= size else 0
        answer["log"] = tail(self.job / "log.txt", answer["log_from"])
        if ended and not answer["events"] and not answer["log"]:
            answer["outcome"] = OUTCOME.dump_json(job_folder.outcome(self.job))
        return answer

    def cancel(self) -> None:
        """Ask for the end."""
        if self.job.exists():
            job_folder.mark_cancelled(self.job)

    def made(self) -> list[File]:
        """What the job made, by digest."""
        found = listing(self.job, follow=False)
        return [file for file in found if file.path not in OURS and not file.path.endswith(".part")]

    def read(self, path: str, offset: int, size: int) -> bytes:
        """A piece of a file that `made` listed."""
        with File(path, "", 0).inside(self.job).open("rb") as file:
            file.seek(offset)
            return file.read(size)

    def close(self) -> None:
        """The job's files here are not needed any more; the store stays."""
        shutil.rmtree(self.work, ignore_errors=True)


def tail(path: Path, offset: int) -> bytes:
    """Up to a MiB of a file from a place on; nothing when it is not there."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(1 << 20)
    except OSError:
        return b""


def collect(work: Path) -> None:
    """Remove what jobs left behind whose submitter died: their wardens are gone."""
    for folder in work.iterdir():
        if folder.stat().st_mtime < time.time() - STALE_S and not job_folder.warden_alive(folder / "job"):
            shutil.rmtree(folder, ignore_errors=True)
