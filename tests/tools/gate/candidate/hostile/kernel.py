"""No kernel: does what its input says (JSON in bytes) and answers with what came of it. `benign` is the control."""

import ctypes
import json
import os
import platform
import signal
import socket
import struct
import subprocess
import time

import torch

print('{"event": "done"}')


def connect(what):
    with socket.create_connection(("127.0.0.1", what["port"]), timeout=2) as end:
        end.sendall(b"out")


def read(what):
    with open(what["path"]) as file:
        return file.read()


def append(what):
    with open(what["path"], "a") as file:
        file.write("written by the candidate")


def kill(what):
    os.kill(what["pid"], signal.SIGKILL)


def datagram(what):
    """To a socket of the file system, such as the journal's: from a socket of its own, and from one of a pair."""
    said = []
    for make in (
        lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
        lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0],
        lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)[0],
    ):
        try:
            with make() as end:
                end.sendto(b"out", what["path"])
            said.append("sent")
        except OSError as error:
            said.append(str(error))
    return said


def namespace(what):
    """New namespaces by clone or clone3, and in them the mount interface; 0 is success."""
    libc, flags = ctypes.CDLL(None, use_errno=True), 0x10000000 | 0x00020000
    if what["by"] == "clone":
        pid = libc.syscall({"x86_64": 56, "aarch64": 220}[platform.machine()], flags | signal.SIGCHLD, 0, 0, 0, 0)
    else:
        asked = struct.pack("11Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
        pid = libc.syscall(435, asked, len(asked))
    if pid == 0:
        os._exit(0 if libc.syscall(430, b"tmpfs", 0) >= 0 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid > 0 else ctypes.get_errno()


def environment(what):
    return dict(os.environ)


def leave(what):
    subprocess.Popen(["sleep", "600"], start_new_session=True)


def daemon(what):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    os.wait()


def flood(what):
    for _ in range(what["mib"]):
        os.write(1, b"x" * ((1 << 20) - 1) + b"\n")
    os.write(2, b"the last line\n")


def forge(what):
    """Answers that it was not asked for, into every socket it holds."""
    for number in range(3, 64):
        try:
            with socket.socket(fileno=os.dup(number)) as end:
                body = json.dumps({"id": what["id"]}).encode()
                end.sendall(len(body).to_bytes(4, "little") + body)
        except OSError:
            continue


def shrink(what):
    """Take the shared memory away under the judge."""
    for number in range(3, 64):
        try:
            os.ftruncate(number, 0)
        except OSError:
            continue


def bomb(what):
    """Twice as many in every fifth of a second: however late the judge looks, this machine goes on."""
    while True:
        os.fork()
        time.sleep(0.2)


def fill(what):
    """As much as is asked for, and no end."""
    kept = [torch.ones(64 << 20, dtype=torch.uint8) for _ in range(what["mib"] // 64)]
    while kept:
        time.sleep(1)


def disk(what):
    with open(os.path.join(os.environ["TMPDIR"], "large"), "wb") as file:
        for _ in range(what["mib"]):
            file.write(b"x" * (1 << 20))
            file.flush()
        while True:
            time.sleep(1)


def fails(what):
    raise RuntimeError(what["says"])


def pid(what):
    return os.getpid()


def segfault(what):
    ctypes.string_at(0)


def hang(what):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    while True:
        ctypes.CDLL(None).pause()


def huge(what):
    return torch.empty((1 << 40,), dtype=torch.uint8, device="meta")


def run(x, weight, eps, residual=None):
    what = json.loads(bytes(x.tolist()))
    try:
        found = globals()[what["do"]](what)
    except OSError as error:
        found = f"refused: {error}"
    if isinstance(found, torch.Tensor):
        return found
    return torch.tensor(list(json.dumps(found).encode()), dtype=torch.uint8)


def benign(what):
    return "benign"
