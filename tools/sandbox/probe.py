"""Tries, from inside, what a sandbox must not allow and what it must: `python -m samebits.tools.sandbox.probe SPEC`.

Prints {"network": bool, "files": bool, "processes": bool, "works": str}: what is held, and why the sandbox cannot be
used ("" when it can).
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any


def closed(attempt: Any) -> bool:
    """Whether an attempt fails."""
    try:
        attempt()
    except OSError:
        return True
    return False


def reach_tcp(port: int) -> None:
    """Connect to the parent's port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as end:
        end.settimeout(2)
        end.connect(("127.0.0.1", port))


def send_udp(port: int) -> None:
    """Send a datagram; a network namespace of its own has no way to send it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.sendto(b"x", ("127.0.0.1", port))


def write(path: str) -> None:
    """Append to a file."""
    with open(path, "a", encoding="utf-8") as file:
        file.write("x")


def unusable(spec: dict[str, Any]) -> str:
    """What candidates need and is not there; "" for nothing."""
    try:
        write(str(Path(spec["private"], "probe")))
        for name in spec["devices"]:
            os.close(os.open(name, os.O_RDWR))
    except OSError as error:
        return str(error)
    if spec["cuda"]:
        with suppress(OSError):
            if code := ctypes.CDLL("libcuda.so.1").cuInit(0):
                return f"the CUDA driver does not start inside (error {code})"
            return ""
        return "the CUDA driver's library is not found inside"
    return ""


def main() -> None:
    """Entry point."""
    spec = json.loads(sys.argv[1])
    network = closed(lambda: reach_tcp(spec["tcp"])) and closed(lambda: send_udp(spec["udp"]))
    canary = spec["canary"]
    files = closed(lambda: open(canary, encoding="utf-8").close()) and closed(lambda: write(canary))
    held = {
        "network": network,
        "files": files and closed(lambda: os.listdir(Path(canary).parent)),
        # In a namespace of its own the number would name another process.
        "processes": os.readlink("/proc/self/ns/pid") != spec["pid_namespace"]
        or closed(lambda: os.kill(spec["pid"], 0)),
        "works": unusable(spec),
    }
    print(json.dumps(held))


if __name__ == "__main__":
    main()
