"""Every result says what held the candidate; where a sandbox is required and none is there, nothing of it runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from samebits.tools.gate.candidate.runner import run_gate, target_of
from samebits.tools.gate.candidate.verb import result_of
from samebits.tools.sandbox.box import ONLY_VARIABLE
from samebits.tools.schema.artifacts.candidate_gate import Sandbox
from samebits.tools.schema.errors import UserError

HERE = Path(__file__).parent


@pytest.fixture
def marked(tmp_path: Path) -> tuple[Path, Path]:
    """A candidate that writes a foreign file when it is loaded, then fails; and that file."""
    folder, mark = tmp_path / "candidate", tmp_path / "mark"
    shutil.copytree(HERE / "good", folder)
    source = folder / "kernel.py"
    text = source.read_text(encoding="utf-8")
    source.write_text(f"{text}\nopen({str(mark)!r}, 'w').close()\nraise RuntimeError('loaded')\n", encoding="utf-8")
    return folder, mark


def test_with_a_sandbox_the_result_names_it_and_foreign_files_stay_closed(
    marked: tuple[Path, Path], tmp_path: Path, lacking: Callable[..., None]
) -> None:
    folder, mark = marked
    report, log = run_gate(target_of(str(folder)), tmp_path / "run", sandbox="auto")
    assert report.sandbox is not None, log
    if not report.sandbox.whole:
        lacking(f"this machine gives no sandbox: {report.sandbox.why}")
    assert not mark.exists()
    assert report.verdict.kind == "stopped"
    summary = result_of(report, "x").summary
    assert f"[sandbox: {report.sandbox.kind} (network closed, files private, processes apart, " in summary
    assert not (tmp_path / "run" / "private").exists()


def test_without_one_the_result_says_so(
    marked: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of both others: the file is written."""
    folder, mark = marked
    monkeypatch.setenv(ONLY_VARIABLE, "none")
    report, _ = run_gate(target_of(str(folder)), tmp_path / "run")
    assert mark.exists()
    summary = result_of(report, "x").summary
    assert "RuntimeError: loaded" in summary
    assert "[UNSANDBOXED: not network closed, files private, processes apart, because bubblewrap: " in summary
    assert f"landlock: {ONLY_VARIABLE} says none]" in summary


def test_where_one_is_required_nothing_of_the_candidate_runs_without(
    marked: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, mark = marked
    monkeypatch.setenv(ONLY_VARIABLE, "none")
    with pytest.raises(UserError, match=r"sandbox = required: UNSANDBOXED.*Next: install bubblewrap"):
        run_gate(target_of(str(folder)), tmp_path / "run", sandbox="required")
    assert not mark.exists()


@pytest.mark.parametrize("missing", ["network", "files", "processes"])
def test_one_open_side_is_no_sandbox(missing: str) -> None:
    held = {"network": True, "files": True, "processes": True} | {missing: False}
    found = Sandbox(kind="landlock", memory_mib=1, why="x", **held)
    assert not found.whole
    assert found.words.startswith("UNSANDBOXED (landlock holds only: ")
    assert Sandbox(kind="landlock", memory_mib=1, why="x", **(held | {missing: True})).whole


def test_a_candidate_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "candidate"
    shutil.copytree(HERE / "good", folder)
    target = target_of(str(folder))
    (folder / "kernel.py").write_text("def run(): ...\n", encoding="utf-8")
    with pytest.raises(UserError, match="changed while it was read"):
        run_gate(target, tmp_path / "run")
