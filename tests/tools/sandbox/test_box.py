"""Each layer of the sandbox, tried for real on this machine, with the layer off as the control."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from samebits.tools.sandbox import landlock
from samebits.tools.sandbox.box import ONLY_VARIABLE, Box, Held, bubblewrap, choose, tried
from samebits.tools.sandbox.processes import below, memory_bytes
from samebits.tools.sandbox.view import View, view_of

WHOLE = Held(network=True, files=True, processes=True)


@pytest.fixture
def view(tmp_path: Path) -> View:
    private = tmp_path / "private"
    private.mkdir()
    return view_of(private)


def inside(box: Box, code: str, before: str = "") -> str:
    """What code prints in a box of Landlock; `before` runs before the box is entered."""
    spec: dict[str, Any] = {"kind": box.kind, "read": [str(p) for p in box.view.read], "private": str(box.view.private)}
    spec |= {"devices": [str(p) for p in box.view.devices], "cuda": False}
    spec |= {"file_bytes": box.file_bytes, "data_bytes": box.data_bytes}
    enter = f"from samebits.tools.sandbox import enter, seccomp\n{before}\nenter.main()"
    command = [sys.executable, "-c", enter, json.dumps(spec), sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, env=box.view.environment(), timeout=600, check=False)
    return run.stdout + run.stderr


UDP = (
    "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('127.0.0.1', 9)); "
    "print('sent')"
)
NAMESPACES_OFF = "enter.ATTEMPTS = ()"
FILTER_OFF = "seccomp.install = lambda: False"


def test_namespaces_and_filter_each_close_the_network_alone(view: View, lacking: Callable[..., None]) -> None:
    if not landlock.abi():
        lacking("this kernel has no Landlock", instead=choose(view).held.whole)
    box = Box("landlock", view)
    assert "Operation not permitted" in inside(box, UDP, NAMESPACES_OFF)
    namespace = inside(box, UDP, FILTER_OFF)
    if "sent" not in namespace:  # where this user may make namespaces
        assert "Network is unreachable" in namespace
    assert "sent" in inside(box, UDP, NAMESPACES_OFF + "\n" + FILTER_OFF), "Landlock itself knows TCP alone"
    assert "sent" in inside(Box("none", view), UDP)


def test_landlock_alone_keeps_files_tcp_and_signals(view: View, tmp_path: Path, lacking: Callable[..., None]) -> None:
    if landlock.abi() < 6:
        lacking("this kernel's Landlock keeps no signals", instead=choose(view).held.whole)
    secret = tmp_path / "secret"
    secret.write_text("kept")
    off = NAMESPACES_OFF + "\n" + FILTER_OFF
    box = Box("landlock", view)
    for code in (
        f"print(open({str(secret)!r}).read())",
        f"open({str(secret)!r}, 'a')",
        f"import os; os.kill({os.getpid()}, 0)",
    ):
        assert "PermissionError" in inside(box, code, off), code
    tcp = "import socket; socket.create_connection(('127.0.0.1', 9))"
    assert "PermissionError" in inside(box, tcp, off)
    assert "ConnectionRefusedError" in inside(Box("none", view), tcp), "the control: it gets as far as the port"
    assert "kept" in inside(Box("none", view), f"print(open({str(secret)!r}).read())")


def test_its_own_folder_is_writable_and_the_program_text_is_not(view: View, lacking: Callable[..., None]) -> None:
    if tried(Box("landlock", view)) != (WHOLE, ""):
        lacking("this machine gives no landlock", instead=choose(view).held.whole)
    box = Box("landlock", view)
    assert "ok" in inside(box, "import os; open(os.environ['TMPDIR'] + '/x', 'w').write('y'); print('ok')")
    target = Path(landlock.__file__)
    assert "PermissionError" in inside(box, f"open({str(target)!r}, 'a')")


def test_what_is_required_fails_where_it_is_missing_and_is_skipped_elsewhere(
    lacking: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SAMEBITS_REQUIRE_SANDBOX", raising=False)
    with pytest.raises(pytest.skip.Exception):
        lacking("why")
    monkeypatch.setenv("SAMEBITS_REQUIRE_SANDBOX", "1")
    with pytest.raises(pytest.skip.Exception):
        lacking("why", instead=True)
    with pytest.raises(pytest.fail.Exception, match=r"asks for it.*why"):
        lacking("why")


def test_limits_are_set_before_the_command(view: View) -> None:
    names = ("FSIZE", "DATA", "CORE")
    code = "import resource as r; print(" + ", ".join(f"r.getrlimit(r.RLIMIT_{name})[0]" for name in names) + ")"
    assert inside(Box("none", view, file_bytes=1 << 20, data_bytes=1 << 32), code).split() == [
        str(1 << 20),
        str(1 << 32),
        "0",
    ]


def test_the_strongest_kind_is_taken_and_a_missing_one_is_named(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    strongest = choose(view)
    assert strongest.kind == "none" or strongest.held == WHOLE
    monkeypatch.setenv("PATH", "")
    without = choose(view)
    assert without.kind != "bubblewrap"
    assert "bubblewrap: bwrap is not installed" in without.why


def test_no_sandbox_is_none_with_every_reason(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    box = choose(view, {"bubblewrap": "out of order", "landlock": "too old"})
    assert (box.kind, box.held) == ("none", Held())
    assert box.why == "bubblewrap: out of order; landlock: too old"
    monkeypatch.setenv(ONLY_VARIABLE, "none")
    assert choose(view).kind == "none"


def test_a_bubblewrap_that_does_not_work_is_passed_over(
    view: View, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bin" / "bwrap"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(broken.parent), prepend=os.pathsep)
    box = choose(view)
    assert box.kind != "bubblewrap"
    assert "bubblewrap: does not start: bwrap: setting up uid map: Permission denied" in box.why


def test_a_leaking_bubblewrap_is_found_out_by_the_probe(
    view: View, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaking = tmp_path / "bin" / "bwrap"
    leaking.parent.mkdir()
    leaking.write_text('#!/bin/sh\nwhile [ "$1" != "--" ]; do shift; done\nshift\nexec "$@"\n')
    leaking.chmod(0o755)
    monkeypatch.setenv("PATH", str(leaking.parent), prepend=os.pathsep)
    held, reason = tried(Box("bubblewrap", view))
    assert reason == ""
    assert not held.files
    assert not held.processes
    assert choose(view).kind != "bubblewrap"


def test_the_view_holds_neither_home_nor_project(view: View, tmp_path: Path) -> None:
    seen = [path.resolve() for path in view.read]
    project = Path(landlock.__file__).resolve().parents[2]
    for place in (Path.home(), tmp_path, Path("/"), Path("/etc"), Path("/tmp")):
        assert place.resolve() not in seen
    assert not [path for path in seen if path in Path.home().parents]
    assert project not in seen or (project / "site-packages").exists()
    assert bubblewrap(view).count("--remount-ro") == 1


def test_secrets_and_foreign_variables_stay_out(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "TORCH_TOKEN", "CUDA_API_KEY", "AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "SAMEBITS_JOB"):
        monkeypatch.setenv(name, "planted")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = view.environment()
    assert "planted" not in found.values()
    assert (found["CUDA_VISIBLE_DEVICES"], found["TRITON_INTERPRET"]) == ("GPU-1", "1")
    assert all(Path(found[name]).is_relative_to(view.private) for name in ("HOME", "TMPDIR", "TRITON_CACHE_DIR"))


def test_descendants_and_their_memory_are_counted() -> None:
    code = "import subprocess, sys, time; kept = bytearray(b'x' * (50 << 20)); subprocess.run(['sleep', '600'])"
    process: subprocess.Popen[Any] = subprocess.Popen([sys.executable, "-IS", "-c", code])
    try:
        while not (family := below(process.pid)):
            assert process.poll() is None
        assert len(family) == 1
        assert family < below(os.getpid())
        assert 50 << 20 < memory_bytes({process.pid}) < 100 << 20
    finally:
        for pid in below(process.pid):
            os.kill(pid, 9)
        process.kill()
        process.wait()


def test_a_sandbox_in_which_the_gpus_driver_does_not_start_is_passed_over(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that fails stands for one whose devices are out of reach inside."""
    with_gpu = View(view.private, view.read, view.devices, cuda=True)
    broken = view.private / "lib" / "libcuda.so.1"
    broken.parent.mkdir()
    source = "int cuInit(unsigned flags) { return CODE; }"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(broken.parent))
    for code, says in ((0, ""), (100, "the CUDA driver does not start inside (error 100)")):
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(broken), f"-DCODE={code}"]
        subprocess.run(command, input=source, text=True, check=True)
        assert tried(Box("none", with_gpu))[1] == says
    box = choose(with_gpu)
    assert box.kind == "none"
    assert "does not start inside (error 100)" in box.why or "is not installed" in box.why


@pytest.mark.gpu
def test_on_a_gpu_machine_the_driver_starts_in_a_whole_sandbox(tmp_path: Path) -> None:
    box = choose(view_of(tmp_path, cuda=True))
    assert box.held == WHOLE, box.why
