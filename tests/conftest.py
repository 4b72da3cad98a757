"""What holds for every test: quiet and offline children, one thread each, markers that follow the machine, and nothing
of a failed test that could fail another one.
"""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

# Before any test module imports torch; children inherit it. One thread: several engines share few cores, and the bits
# do not depend on it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
for name, value in {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "NO_COLOR": "1",
    "SAMEBITS_POOL": "/nonexistent/pool",  # never the pool that this user may be running
}.items():
    os.environ[name] = value

# Seconds a test may take. For pytest-timeout, one version of which wants it in pyproject.toml as text, another
# as a number, and which many a GPU machine lacks, where an unknown setting would end the run.
os.environ.setdefault("PYTEST_TIMEOUT", "1200")

# Whoever starts pytest in the background of a shell makes it deaf to Ctrl-C; what the tests start must hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

with suppress(ImportError):  # many a GPU machine lacks it, and the tests that need it then say so
    from hypothesis import HealthCheck, settings

    # The same examples in every run, however slow the machine is; the workers share no database.
    slow = [HealthCheck.too_slow]
    settings.register_profile("same", deadline=None, derandomize=True, database=None, suppress_health_check=slow)
    settings.load_profile("same")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with its reason in the closing summary, what this machine cannot run."""
    lacking = {}
    if not Path("/dev/nvidiactl").exists():
        lacking["gpu"] = "no CUDA device here"
    if importlib.util.find_spec("vllm") is None:
        lacking["vllm"] = "vLLM is not installed here"
    for item in items:
        for marker, reason in lacking.items():
            if item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """The same random numbers in every run, whichever tests this process has run before."""
    random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


END_S = 40.0
"""So long a process of a failed test may take to end by itself: a warden ends its worker first."""


@contextmanager
def noted() -> Iterator[WeakSet[subprocess.Popen[Any]]]:
    """The processes that are started meanwhile."""
    found: WeakSet[subprocess.Popen[Any]] = WeakSet()
    begin = subprocess.Popen.__init__

    def note(self: subprocess.Popen[Any], *args: Any, **more: Any) -> None:
        found.add(self)
        begin(self, *args, **more)

    subprocess.Popen.__init__ = note  # type: ignore[method-assign]
    try:
        yield found
    finally:
        subprocess.Popen.__init__ = begin  # type: ignore[method-assign]


def end(process: subprocess.Popen[Any]) -> None:
    """End it and close its pipes."""
    if process.stdin is not None:
        with suppress(OSError, ValueError):
            process.stdin.close()
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """End what a failed test left running. A later test of the same worker would meet its processes, or the warnings
    that the garbage collector gives about them, and fail with it.
    """
    with noted() as started:
        try:
            return (yield)
        except BaseException:
            for process in list(started):
                if hasattr(process, "pid"):  # it was started
                    end(process)
            raise


@pytest.fixture
def lacking() -> Callable[..., None]:
    """lacking(reason, instead=False): not run here. SAMEBITS_REQUIRE_SANDBOX=1 makes it a failure, unless another kind
    of sandbox stands in for the one that is not here.
    """

    def say(reason: object, *, instead: bool = False) -> None:
        if os.environ.get("SAMEBITS_REQUIRE_SANDBOX") == "1" and not instead:
            pytest.fail(f"SAMEBITS_REQUIRE_SANDBOX=1 asks for it, and it cannot be run here: {reason}")
        pytest.skip(f"not run: {reason}")

    return say


MOUNT = 'mount -t tmpfs -o "size=$0k" tmpfs "$1" || exit 77; cd "$1"; shift; exec "$@"'


@pytest.fixture
def small_disk(tmp_path: Path, lacking: Callable[..., None]) -> Callable[..., str]:
    """small_disk(kib, *command): what a command prints in `tmp_path/disk`, a real file system of that size."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def run(kib: int, *command: str) -> str:
        for own in ("-Urm", "-m"):  # the second where no user namespaces are given, to root
            whole = ["unshare", own, "sh", "-c", MOUNT, str(kib), str(disk), *command]
            done = subprocess.run(whole, capture_output=True, text=True)
            if not (none := done.returncode == 77 or "unshare" in done.stderr):
                break
        if none:
            lacking(f"no file system of its own can be made here: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
