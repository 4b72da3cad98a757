"""Devices and their locks: one job per GPU, one on the CPU, across every samebits server of this user on this machine.

A lock is a `flock` on a file named after the GPU's UUID, in a folder that no setting of a session moves (TMPDIR and
HOME may differ between two servers). The descriptor is handed to the job's warden and worker, so a slot is taken
exactly as long as one of them lives, whatever became of the server.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.server.jobs import folder as job_folder
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import ApplyRequest, InspectRequest, ProposeRequest

if TYPE_CHECKING:
    from samebits.tools.schema.requests import Request

LOCKS_VARIABLE = "SAMEBITS_LOCKS"
PLACES = (Path("/var/tmp"), Path("/tmp"))
"""The first that is there holds the locks: every user can write to them, whatever the environment says."""
CPU, LOOK = "cpu", "look"
"""The CPU's slot, and that of short jobs, which only look at what is there: none waits for a device."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a job takes: the slot of a name, or so many GPUs."""

    slot: str = ""
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """Slots taken: their names, their descriptors, and the environment that shows the job only them."""

    names: tuple[str, ...]
    descriptors: tuple[int, ...]
    env: dict[str, str]

    def close(self) -> None:
        """Let go of this process's copies; the job's own keep the slot until it ends."""
        for descriptor in self.descriptors:
            with suppress(OSError):
                os.close(descriptor)


@cache
def gpus() -> tuple[str, ...]:
    """UUIDs of the GPUs this process may use, in PCI order; empty without nvidia-smi."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    with suppress(OSError, subprocess.SubprocessError):
        query = [tool, "--query-gpu=index,uuid", "--format=csv,noheader"]
        listed = subprocess.run(
            query, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=True
        ).stdout
        return visible(listed, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return ()


def visible(listed: str, allowed: str | None) -> tuple[str, ...]:
    """UUIDs of nvidia-smi's "index, uuid" lines that CUDA_VISIBLE_DEVICES (indices or UUID beginnings) lets through."""
    found = [
        (index.strip(), uuid.strip())
        for index, _, uuid in (line.partition(",") for line in listed.splitlines())
        if uuid
    ]
    if allowed is None:
        return tuple(uuid for _, uuid in found)
    wanted = [part.strip() for part in allowed.split(",") if part.strip()]
    chosen = [
        uuid for want in wanted for index, uuid in found if want == index or (want[:1] == "G" and uuid.startswith(want))
    ]
    return tuple(chosen)


def need_of(request: Request, available: tuple[str, ...]) -> Need:
    """What a request takes.

    Raises:
        UserError: more GPUs than there are.
    """
    if isinstance(request, InspectRequest | ProposeRequest | ApplyRequest):
        return Need(slot=LOOK)
    experiment = getattr(request, "experiment", None)
    device = experiment.device if experiment is not None else getattr(request, "device", "auto")
    if device == "cpu" or not available:
        return Need(slot=CPU)
    count = gpu_count(request)
    if count > len(available):
        raise UserError("rollout.engine", f"asks for {count} GPUs, {len(available)} can be used here", "ask for fewer")
    return Need(gpus=count)


def gpu_count(request: Request) -> int:
    """GPUs that a request takes where there are any; 0: it looks at nothing but the CPU."""
    experiment = getattr(request, "experiment", None)
    device = experiment.device if experiment is not None else getattr(request, "device", "auto")
    if device == "cpu":
        return 0
    if experiment is None:
        return 1
    engine = experiment.rollout.engine
    return int(engine.get("tensor_parallel_size", 1)) * int(engine.get("pipeline_parallel_size", 1))


def default_folder() -> Path:
    """Where the locks are: SAMEBITS_LOCKS, else one folder of this user on this machine."""
    named = os.environ.get(LOCKS_VARIABLE)
    if named:
        return Path(named)
    return next((place for place in PLACES if place.is_dir()), PLACES[0]) / f"samebits-locks-{os.getuid()}"


class Slots:
    """Takes slots, never waiting.

    Args:
        folder: where the lock files are.
        available: UUIDs of the GPUs; None: those that nvidia-smi lists, asked when first needed.
    """

    def __init__(self, folder: Path, available: tuple[str, ...] | None = None) -> None:
        self.folder = folder
        self._available = available

    @property
    def available(self) -> tuple[str, ...]:
        """UUIDs of the GPUs that jobs may take."""
        return gpus() if self._available is None else self._available

    def take(self, need: Need, job: str, folder: Path | None = None) -> Held | None:
        """The slots, or None while too few are free.

        Args:
            job: its name, for those who wait.
            folder: its folder, in which they see what became of it.

        Raises:
            UserError: the lock folder cannot be used.
        """
        note = f"{job}\n{folder or ''}"
        names = [need.slot] if need.slot else list(self.available)
        wanted = 1 if need.slot else need.gpus
        held: list[tuple[str, int]] = []
        for name in names:
            if len(held) < wanted and (descriptor := self._lock(name, note)) is not None:
                held.append((name, descriptor))
        if len(held) < wanted:
            for _, descriptor in held:
                os.close(descriptor)
            return None
        env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if self.available else {}
        if self.available:
            env["CUDA_VISIBLE_DEVICES"] = "" if need.slot == CPU else ",".join(name for name, _ in held if name != LOOK)
        if need.slot == LOOK:
            env = {}
        return Held(tuple(name for name, _ in held), tuple(descriptor for _, descriptor in held), env)

    def holder(self, need: Need) -> str:
        """Which job holds a slot that is waited for, as far as its file says; of one that has ended, which process."""
        for name in [need.slot] if need.slot else self.available:
            with suppress(OSError):
                job, _, folder = (self.folder / f"{name}.lock").read_text(encoding="utf-8").partition("\n")
                return (job_folder.stuck(Path(folder)) if folder else "") or job.strip()
        return ""

    def _lock(self, name: str, note: str) -> int | None:
        try:
            self._check_folder()
            descriptor = os.open(self.folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UserError(
                str(self.folder), reason, f"set {LOCKS_VARIABLE} to a folder that can be written"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, note.encode(), 0)
        return descriptor

    def _check_folder(self) -> None:
        """The folder stands where others may write: one that is theirs, or that they can change, locks nothing.

        Raises:
            UserError: it is such a one.
            OSError: it cannot be made.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = self.folder.lstat()
        if stat.S_ISLNK(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise UserError(
                str(self.folder),
                "is not a folder of this user alone, so a lock in it would hold nobody",
                f"remove it, or set {LOCKS_VARIABLE} to a folder that others cannot write",
            )
