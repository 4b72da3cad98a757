"""A hostile candidate in its process: what it tries has no effect outside, and each way to fall is one clear red.

The judge's end (Link) runs in this process; the candidate's is real, in each kind of sandbox and, as the control, in
none.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from samebits.tools.gate.candidate.link import Limits, Link, start
from samebits.tools.gate.candidate.log import LIMIT_BYTES
from samebits.tools.gate.candidate.plan import RedError
from samebits.tools.sandbox.box import ONLY_VARIABLE, Box, Held, choose, tried
from samebits.tools.sandbox.processes import below
from samebits.tools.sandbox.view import view_of

HOSTILE = Path(__file__).parent / "hostile"
Opened = Callable[..., Link]


@pytest.fixture(scope="module", autouse=True)
def adopted() -> Iterator[None]:
    """As the judge's process does: orphans of the candidate become its children. Taken back at the end."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.prctl(36, 1)
    yield
    libc.prctl(36, 0)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """opened(kind, **limits): a process with the hostile candidate, loaded; "": in the strongest kind there is."""
    links: list[Link] = []
    own = below(os.getpid())

    def one(kind: str = "", **limits: Any) -> Link:
        folder = tmp_path_factory.mktemp("private")
        (folder / "build").mkdir()
        job = {"operator": "rms_norm", "device": "cpu", "interpreted": False, "inside": str(HOSTILE)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(ONLY_VARIABLE, kind)
            patch.setenv("SAMEBITS_TEST_TOKEN", "planted")
            given = Limits(**{"memory_bytes": 4 << 30} | limits)
            link = start(job, view_of(folder, (HOSTILE,)), given, folder.parent / f"{folder.name}.txt", {})
        assert kind in ("", link.box.kind), link.box.why
        links.append(link)
        link.deadline, link.limit_s = time.monotonic() + 500, 500
        link.ask("load", "does not build")
        return link

    yield one
    for link in links:
        link.stop()
    assert below(os.getpid()) <= own


def do(link: Link, what: str, **more: Any) -> Any:
    """Have the candidate do something; returns what it says came of it."""
    text = json.dumps({"do": what} | more).encode()
    args = {"x": torch.tensor(list(text), dtype=torch.uint8), "weight": None, "eps": 0.0}
    return json.loads(bytes(link.call(args, what)[0].tolist()))


class World:
    """What a candidate may not reach: a server, a file in the home folder, a process."""

    def __init__(self, folder: Path) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(0.5)
        self.secret = folder / "home" / "secret.txt"
        self.secret.parent.mkdir()
        self.secret.write_text("a secret")
        self.contract = folder / "contract.py"
        self.contract.write_text("the contract")
        self.victim = subprocess.Popen(["sleep", "600"])
        self.journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.short = tempfile.TemporaryDirectory(prefix="samebits-", dir="/tmp")  # 107 bytes at most
        self.journal.bind(f"{self.short.name}/journal")
        self.journal.settimeout(0.5)

    def told(self) -> int:
        """Datagrams that came."""
        count = 0
        with suppress(TimeoutError):
            while self.journal.recv(10):
                count += 1
        return count

    def reached(self) -> bool:
        with suppress(TimeoutError):
            self.server.accept()[0].close()
            return True
        return False

    def close(self) -> None:
        self.server.close()
        self.journal.close()
        self.short.cleanup()
        self.victim.kill()
        self.victim.wait()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def attack(link: Link, world: World, patience_s: float) -> dict[str, bool]:
    """Which attempts had an effect outside, the last of them within that time."""
    do(link, "connect", port=world.server.getsockname()[1])
    read = do(link, "read", path=str(world.secret))
    do(link, "append", path=str(world.contract))
    do(link, "datagram", path=world.journal.getsockname())
    line = do(link, "read", path=f"/proc/{world.victim.pid}/cmdline")
    made = {by: do(link, "namespace", by=by) == 0 for by in ("clone", "clone3")}
    do(link, "kill", pid=world.victim.pid)
    with suppress(subprocess.TimeoutExpired):
        world.victim.wait(patience_s)
    return {
        "socket": world.reached(),
        "home": "a secret" in read,
        "contract": world.contract.read_text() != "the contract",
        "process": world.victim.poll() is not None,
        "datagram": world.told() > 0,
        "command line": "sleep" in line,
        **made,
    }


@pytest.mark.parametrize("kind", ["bubblewrap", "landlock"])
def test_in_a_sandbox_nothing_outside_is_reached_and_the_candidate_works(
    kind: str, opened: Opened, world: World, lacking: Callable[..., None]
) -> None:
    view = view_of(world.secret.parent)
    if (answer := tried(Box(kind, view))) != (Held(True, True, True), ""):  # type: ignore[arg-type]
        lacking(f"this machine gives no {kind}: {answer}", instead=choose(view).held.whole)
    link = opened(kind)
    assert link.box.held == Held(network=True, files=True, processes=True)
    assert set(attack(link, world, 0.5).values()) == {False}
    assert do(link, "benign") == "benign"
    seen = do(link, "environment")
    assert "planted" not in seen.values()
    assert seen["HOME"] == str(link.box.view.private / "home")
    assert do(link, "append", path=seen["HOME"] + "/own") is None, "its own folder can be written"


def test_without_a_sandbox_every_attempt_succeeds_and_the_box_says_so(opened: Opened, world: World) -> None:
    """The control: the attempts themselves are real."""
    link = opened("none")
    assert link.box.held == Held()
    effects = attack(link, world, 120)
    if subprocess.run(["unshare", "-Ur", "true"], check=False).returncode:
        effects = {name: effect for name, effect in effects.items() if not name.startswith("clone")}
    assert set(effects.values()) == {True}
    assert "planted" not in do(link, "environment").values(), "secrets stay out in any case"


@pytest.mark.parametrize("kind", ["", pytest.param("none", marks=pytest.mark.slow)])
def test_processes_left_behind_are_seen_and_ended(kind: str, opened: Opened) -> None:
    link = opened(kind)
    do(link, "benign")
    assert link.left_behind() == 0
    do(link, "leave")
    assert link.left_behind() == 1
    do(link, "daemon")
    assert link.left_behind() == 2
    link.stop()
    assert below(os.getpid()) <= link.others


def test_what_it_prints_claims_and_takes_away_changes_nothing(opened: Opened) -> None:
    link = opened()
    do(link, "flood", mib=40)
    do(link, "shrink")
    assert do(link, "benign") == "benign"
    with pytest.raises(RedError, match="File too large"):
        do(link, "huge")
    assert do(link, "benign") == "benign"
    with pytest.raises(RedError, match="answers"):
        do(link, "forge", id=link.count + 1)
    link.stop()
    files = [link.log.path, link.log.path.with_suffix(".1.txt")]
    assert sum(path.stat().st_size for path in files) <= 2 * LIMIT_BYTES + (1 << 20)
    assert link.log.last_line() == "the last line"


def test_a_process_that_saw_a_cuda_error_is_ended_and_the_next_is_another(opened: Opened) -> None:
    link = opened()
    first = do(link, "pid")
    with pytest.raises(RedError, match="No CUDA in it"):
        do(link, "fails", says="No CUDA in it")
    assert do(link, "pid") == first, "the control: another error does not end it"
    with pytest.raises(RedError, match="CUDA error: an illegal memory access"):
        do(link, "fails", says="CUDA error: an illegal memory access was encountered")
    assert link.process.poll() is not None
    assert below(os.getpid()) <= link.others
    assert opened().process.pid != link.process.pid


FALLS = {
    "segfault": ("the process died: SIGSEGV", {}, {}),
    "hang": ("no answer within 2 s: it hangs", {}, {}),
    "bomb": ("processes, 10 are allowed; all ended", {"processes": 10, "memory_bytes": 64 << 30}, {}),
    "fill": ("MiB of memory, 700 are allowed; ended", {"memory_bytes": 700 << 20}, {"mib": 1024}),
    "disk": ("MiB to disk, 50 are allowed; ended", {"disk_bytes": 50 << 20}, {"mib": 100}),
}


@pytest.mark.parametrize("what", FALLS)
def test_each_way_to_fall_is_one_red_line_and_leaves_nothing(what: str, opened: Opened) -> None:
    says, limits, more = FALLS[what]
    link = opened(**limits)
    assert do(link, "benign") == "benign"
    link.deadline, link.limit_s = time.monotonic() + (2 if what == "hang" else 500), 2
    with pytest.raises(RedError) as red:
        do(link, what, **more)
    assert says in str(red.value)
    link.stop()
    assert below(os.getpid()) <= link.others
