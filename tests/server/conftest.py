"""A stand-in for the worker, and a project to serve.

Real verbs load torch, which is too slow for hundreds of jobs and cannot be made to crash at will. So `worker_python` of
these tests is a small script that is started exactly as the interpreter of a worker is, and behaves as
rollout.engine.do says.
Everything else (server, pool, warden, processes, files) is the real thing.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from samebits.tools.schema.requests import MeasureRequest

WAIT_S = 120.0
"""For what comes about in a moment on a quiet machine; waited out only where it never does."""
SCRIPT = r"""#!{python} -IS
import ctypes, json, os, signal, subprocess, sys, time

folder = sys.argv[3]
request = json.load(open(folder + "/request.json"))
engine = request["experiment"]["rollout"]["engine"]
do, value = engine["do"], engine.get("value", 0)


def event(message, done=None, phase="stand-in"):
    with open(folder + "/events.jsonl", "a") as file:
        file.write(json.dumps(dict(time=time.time(), phase=phase, message=message, done=done, total=None)) + "\n")


def answer(summary="done", rows=(), **more):
    result = dict(verdict="equal", summary=summary, rows=rows, total=len(rows), **more)
    with open(folder + "/result.json.part", "w") as file:
        json.dump(dict(state="succeeded", result=result), file)
    os.replace(folder + "/result.json.part", folder + "/result.json")


started = time.monotonic()
event("working", 1)
if do == "segfault":
    ctypes.string_at(0)
elif do == "hang":
    signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM, signal.SIGINT}})
    ctypes.CDLL(None).pause()
elif do == "daemon":
    code = "import time; time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-IS", "-c", code], start_new_session=True)
    open(folder + "/daemon.part", "w").write(str(child.pid))
    os.replace(folder + "/daemon.part", folder + "/daemon")
    time.sleep(600)
elif do == "leave":
    subprocess.Popen([sys.executable, "-IS", "-c", "import time; time.sleep(600)"], start_new_session=True)
    answer()
elif do == "phases":
    kept = bytearray(value << 20)
    for place in range(0, len(kept), 4096):
        kept[place] = 1
    for phase in ("open", "capture", "open"):
        event("working", phase=phase)
        time.sleep(600 if phase == engine.get("stay") else 0.2)
    answer()
elif do == "full":
    with open(folder + "/junk", "wb", 0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    answer()
elif do == "cuda":
    print("RuntimeError: CUDA error: an illegal memory access was encountered", file=sys.stderr, flush=True)
    sys.exit(1)
elif do == "silent":
    open(folder + "/heartbeat", "w").close()
    time.sleep(value)
    answer()
elif do == "memory":
    kept = bytearray(value << 20)
    for place in range(0, len(kept), 4096):
        kept[place] = 1
    time.sleep(600)
elif do == "shm":
    import mmap

    kept = mmap.mmap(-1, value << 20)
    for place in range(0, len(kept), 4096):
        kept[place] = 1
    time.sleep(600)
elif do == "flood":
    for _ in range(value):
        os.write(1, b"x" * ((1 << 20) - 1) + b"\n")
    os.write(2, b"the last line\n")
    answer()
elif do == "print":
    print('{{"jsonrpc": "2.0", "id": 1, "result": {{}}}}', flush=True)
    os.write(1, b"\x1b[31mnative \x07write\x1b[0m\n")
    answer()
elif do == "env":
    answer(rows=[dict(name=name, value=text) for name, text in os.environ.items()])
elif do == "rows":
    name = "layers.%d\x1b[31m\u202e\x00"
    answer(summary="a\x1b[2J\u202eb", rows=[dict(site=name % i, text="y" * 300) for i in range(value)])
elif do == "artifact":
    os.mkdir(folder + "/gap")
    open(folder + "/gap/manifest.json", "w").write("m" * value)
    open(folder + "/gap/gap.safetensors", "wb").write(b"\0" * 10)
    os.symlink("/etc", folder + "/outside")
    answer(ids=dict(gap="gap"))
elif do == "manifest":
    import hashlib

    os.mkdir(folder + "/gap")
    data = b"\0" * 10
    files = dict([("gap.safetensors", hashlib.sha256(b"x" if value else data).hexdigest())])
    json.dump(dict(kind="gap", files=files), open(folder + "/gap/manifest.json", "w"))
    open(folder + "/gap/gap.safetensors", "wb").write(data)
    os.symlink("/etc", folder + "/outside")
    answer(ids=dict(gap="gap"))
elif do == "elsewhere":
    following = "samebits diff --rollout " + request["rollout"] + " --max-operators 4"
    answer(ids=dict(rollout=os.path.relpath(request["rollout"], folder)), next=following, rows=[dict(a=None, b=0)])
elif do == "read":
    model = request["experiment"]["rollout"]["model"]
    places = [os.path.join(place, name) for place, _, names in os.walk(model) for name in names]
    answer(rows=[dict(path=os.path.relpath(path, model), text=open(path).read()) for path in sorted(places)])
elif do == "until":
    while not os.path.exists(folder + "/go"):
        time.sleep(0.02)
    answer()
elif do == "torn":
    open(folder + "/result.json", "w").write('{{"state": "succeeded", "res')
else:
    time.sleep(value)
    row = dict(started=started, ended=time.monotonic(), pid=os.getpid(), devices=os.environ.get("CUDA_VISIBLE_DEVICES"))
    answer(rows=[row])
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script."""
    path = tmp_path_factory.mktemp("stand-in") / "worker"
    path.write_text(SCRIPT.format(python=sys.executable))
    path.chmod(0o755)
    return path


@pytest.fixture
def asked(stand_in: Path) -> Callable[..., MeasureRequest]:
    """asked(do, value=0, more={}, **pool): a request for the stand-in."""
    from samebits.tools.schema.requests import MeasureRequest

    def request(do: str, value: float = 0, more: dict[str, Any] | None = None, **pool: Any) -> MeasureRequest:
        experiment = {
            "device": "cpu",
            "rollout": {"engine": {"do": do, "value": value} | (more or {})},
            "pool": {"worker_python": str(stand_in)} | pool,
        }
        return MeasureRequest.model_validate({"experiment": experiment})

    return request


@pytest.fixture
def project(tmp_path: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose samebits.toml runs the stand-in; locks and working directory are its own."""
    folder = tmp_path / "project"
    (folder / "model").mkdir(parents=True)
    inside = shutil.copy2(stand_in, folder / "worker")  # an interpreter outside the project would be refused
    (folder / "samebits.toml").write_text(
        f'device = "cpu"\n[rollout]\nmodel = "model"\nengine = {{ do = "sleep" }}\n[pool]\nworker_python = "{inside}"\n'
    )
    monkeypatch.setenv("SAMEBITS_LOCKS", str(tmp_path / "locks"))
    monkeypatch.delenv("CLAUDE_PROJECT_DIR", raising=False)
    monkeypatch.chdir(folder)
    return folder


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def alive() -> Callable[[int], bool]:
    return is_alive


@pytest.fixture
def at_work() -> Callable[[Path], bool]:
    """at_work(folder): whether a job's worker has begun, and its warden has said that it watches it."""

    def begun(folder: Path) -> bool:
        return all((folder / name).exists() for name in ("worker.json", "events.jsonl"))

    return begun


@pytest.fixture
def eventually() -> Callable[..., None]:
    """eventually(condition): wait until it holds, however slow the machine is; fail when it never does."""

    def wait(condition: Callable[[], object], seconds: float = WAIT_S) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, "it never came about"
            time.sleep(0.02)

    return wait


@pytest.fixture
def strays(tmp_path: Path) -> Iterator[Callable[[], list[int]]]:
    """strays(): living processes that carry the name of a job of this test. None may be left at its end."""

    def found() -> list[int]:
        mark, pids = f"SAMEBITS_JOB={tmp_path}{os.sep}".encode(), []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes() and is_alive(int(entry.name)):
                    pids.append(int(entry.name))
            except OSError:
                continue
        return pids

    yield found
    until = time.monotonic() + WAIT_S
    while (left := found()) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert left == []
