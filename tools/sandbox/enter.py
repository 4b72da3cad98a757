"""Goes into the sandbox and becomes the command: `python -m samebits.tools.sandbox.enter SPEC COMMAND...`.

SPEC (JSON): {"kind": "bubblewrap" | "landlock" | "none", "read": [...], "private": "...", "devices": [...], "cuda":
bool, "file_bytes": int, "data_bytes": int}. Under bubblewrap the namespaces are there already and the filter of system
calls is added. For Landlock it makes what namespaces it can (network, processes), then the rules, then the filter.
"none" sets limits alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any

from samebits.tools.sandbox import landlock, seccomp

PR_SET_PDEATHSIG, PR_SET_SECUREBITS = 1, 28
NOROOT_LOCKED = 3
NEWUSER, NEWPID, NEWNET, NEWIPC = 0x10000000, 0x20000000, 0x40000000, 0x08000000
PROC = tuple(f"/proc/{name}" for name in ("self", "cpuinfo", "meminfo", "stat", "filesystems", "sys/vm", "sys/kernel"))
"""What libraries ask of the machine; nothing of other processes."""
CUDA = ("/sys", "/proc/driver", "/proc/devices", "/proc/modules", "/proc/version")
ATTEMPTS = (NEWUSER | NEWPID | NEWNET | NEWIPC, NEWPID | NEWNET | NEWIPC, NEWUSER | NEWNET, NEWNET)


def die_with_parent() -> None:
    """KILL when the parent ends, however it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def unshare() -> int:
    """Leave as many namespaces as the kernel lets this user leave; returns their flags, 0 for none."""
    libc = ctypes.CDLL(None, use_errno=True)
    return next((flags for flags in ATTEMPTS if libc.unshare(flags) == 0), 0)


def follow(child: int) -> None:
    """Wait for the child, also for orphans that become this process's, and end as the child ended (128 + number for a
    signal).
    """
    pid, status = os.wait()
    while pid != child:
        pid, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    os._exit(128 - code if code < 0 else code)


def set_limits(spec: dict[str, Any]) -> None:
    """No core dumps, no endless files; on CPU also no endless memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for which, value in ((resource.RLIMIT_FSIZE, spec["file_bytes"]), (resource.RLIMIT_DATA, spec["data_bytes"])):
        if value:
            hard = resource.getrlimit(which)[1]
            lower = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(which, (lower, lower))


def enter_landlock(spec: dict[str, Any]) -> None:
    """Namespaces, rules, filter."""
    flags = unshare()
    if flags & NEWPID:
        for _ in ("the namespace's first process, which no signal of its own reaches", "the command"):
            child = os.fork()
            if child:
                follow(child)
            die_with_parent()
    if not flags & NEWUSER and os.geteuid() == 0:
        ctypes.CDLL(None).prctl(PR_SET_SECUREBITS, NOROOT_LOCKED, 0, 0, 0)  # root without its powers, after exec
    # /proc/self is opened here, so it is this process, which becomes the command; what that starts has none.
    read = [*spec["read"], *PROC, *(CUDA if spec["cuda"] else ["/sys/devices/system"])]
    landlock.restrict(read, [spec["private"]], spec["devices"])


def main() -> None:
    """Entry point."""
    spec, command = json.loads(sys.argv[1]), sys.argv[2:]
    die_with_parent()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    set_limits(spec)
    if spec["kind"] == "landlock":
        enter_landlock(spec)
    if spec["kind"] != "none":
        landlock.no_new_privileges()
        seccomp.install()
    os.chdir(spec["private"])
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
