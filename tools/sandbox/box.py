"""Which sandbox this machine can give: the strongest kind that, tried for real, keeps what it promises."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from samebits.tools.sandbox.view import View

Kind = Literal["bubblewrap", "landlock", "none"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ONLY_VARIABLE = "SAMEBITS_SANDBOX"
"""Names one kind: the others are then not tried."""
PROBE_S = 60.0
SPLIT = "samebits.tools.sandbox."


@dataclass(slots=True, frozen=True)
class Held:
    """What was tried from inside and refused: the network, foreign files, signals to foreign processes."""

    network: bool = False
    files: bool = False
    processes: bool = False

    @property
    def whole(self) -> bool:
        """Whether it counts as a sandbox."""
        return self.network and self.files and self.processes

    @property
    def open(self) -> str:
        """What is not held, in words."""
        return ", ".join(name for name, held in asdict(self).items() if not held)


@dataclass(slots=True, frozen=True)
class Box:
    """A kind of sandbox around one view."""

    kind: Kind
    view: View
    held: Held = Held()
    why: str = ""
    """Why no stronger kind is used; "" for the strongest."""
    file_bytes: int = 0
    """Largest file that may be written; 0: any."""
    data_bytes: int = 0
    """Memory of one process (RLIMIT_DATA); 0: any."""

    def command(self, module: str, *arguments: str) -> list[str]:
        """The command line that runs a module of this interpreter inside."""
        return self.python("-m", module, *arguments)

    def python(self, *arguments: str) -> list[str]:
        """The command line that runs this interpreter inside, in the private folder."""
        spec = {
            "kind": self.kind,
            "read": [str(path) for path in self.view.read],
            "private": str(self.view.private),
            "devices": [str(path) for path in self.view.devices],
            "cuda": self.view.cuda,
            "file_bytes": self.file_bytes,
            "data_bytes": self.data_bytes,
        }
        python = [sys.executable, "-P"]
        inner = [*python, "-m", f"{SPLIT}enter", json.dumps(spec), *python, *arguments]
        return [*bubblewrap(self.view), *inner] if self.kind == "bubblewrap" else inner


def bubblewrap(view: View) -> list[str]:
    """bwrap's arguments: own users, processes, network; read-only what is in view; nothing else of the file system."""
    found = ["bwrap", "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    found += ["--unshare-cgroup-try", "--cap-drop", "ALL", "--die-with-parent", "--new-session"]
    found += ["--proc", "/proc", "--dev", "/dev"]
    for device in view.devices:
        found += ["--dev-bind-try", str(device), str(device)]
    for name, own in (("/dev/shm", "shm"), ("/tmp", "tmp")):
        (view.private / own).mkdir(exist_ok=True)
        found += ["--bind", str(view.private / own), name]
    system = "/sys" if view.cuda else "/sys/devices/system"
    found += ["--ro-bind-try", system, system]
    for path in view.read:
        if path.parent == Path("/") and path.is_symlink():
            found += ["--symlink", os.readlink(path), str(path)]
        else:
            found += ["--ro-bind", str(path), str(path)]
    private = str(view.private)
    return [*found, "--bind", private, private, "--remount-ro", "/", "--chdir", private, "--"]


def choose(view: View, unusable: Mapping[Kind, str] | None = None) -> Box:
    """The strongest kind that keeps network, files and processes when tried; else the best there is, down to "none".

    A kind that does not start, or in which a device does not open, is passed over. SAMEBITS_SANDBOX names a kind to try
    alone before "none".

    Args:
        unusable: kinds that are out for another reason, and the reason.
    """
    only = os.environ.get(ONLY_VARIABLE, "")
    best, reasons = Box("none", view), []
    for kind in KINDS[:-1]:
        if unusable and kind in unusable:
            reasons.append(f"{kind}: {unusable[kind]}")
            continue
        if only and kind != only:
            reasons.append(f"{kind}: {ONLY_VARIABLE} says {only}")
            continue
        box = Box(kind, view)
        held, reason = tried(box)
        if held.whole and not reason:
            return replace(box, held=held, why="; ".join(reasons))
        reasons.append(f"{kind}: {reason or f'does not hold {held.open}'}")
        if not reason and held.files and best.kind == "none":
            best = replace(box, held=held)
    return replace(best, why="; ".join(reasons))


def tried(box: Box) -> tuple[Held, str]:
    """What a kind holds here, and why it cannot be used ("" when it can)."""
    if box.kind == "bubblewrap" and shutil.which("bwrap") is None:
        return Held(), "bwrap is not installed"
    with ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="samebits-canary-")))
        canary = place / "canary"
        canary.write_text("x", encoding="utf-8")
        spec = {
            "tcp": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "canary": str(canary),
            "pid": os.getpid(),
            "pid_namespace": os.readlink("/proc/self/ns/pid"),
            "private": str(box.view.private),
            "devices": [str(path) for path in box.view.devices],
            "cuda": box.view.cuda,
        }
        try:
            run = subprocess.run(
                box.command(f"{SPLIT}probe", json.dumps(spec)),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PROBE_S,
                env=box.view.environment(),
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Held(), f"does not start: {error}"
    try:
        answer = json.loads(run.stdout)
    except ValueError:
        words = run.stderr.decode("utf-8", errors="replace").strip().splitlines()
        return Held(), f"does not start: {words[-1][:200] if words else f'exit code {run.returncode}'}"
    return Held(answer["network"], answer["files"], answer["processes"]), answer["works"]
