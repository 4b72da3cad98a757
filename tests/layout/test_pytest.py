"""The tests run where pytest-timeout is not installed, as on many a GPU machine, and one that fails fails no other."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def collected(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:timeout", "-p", "no:cacheprovider", "--collect-only", "-q"]
    return subprocess.run(
        [*command, *options, "tests/layout/test_pytest.py"], cwd=root, capture_output=True, text=True, check=False
    )


def test_no_plugin_is_needed_for_the_settings_to_be_known(root: Path) -> None:
    done = collected(root)
    assert done.returncode == 0, done.stdout + done.stderr
    without = collected(root, "--noconftest")
    assert without.returncode != 0, "the control: nothing would be shown"
    assert "Unknown config option: timeout" in without.stdout + without.stderr


LEAVES = """import gc, subprocess

def test_that_leaves_a_process_and_its_pipe():
    process = subprocess.Popen(["sleep", "600"], stdout=subprocess.PIPE)
    print("left", process.pid)
    raise AssertionError

def test_in_which_the_garbage_collector_finds_them():
    gc.collect()
"""


def test_a_failed_test_leaves_nothing_that_fails_the_next_one(root: Path, tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(LEAVES)
    shutil.copy(root / "pyproject.toml", tmp_path)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_two.py"]

    def failures() -> int:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        (pid,) = (line.split()[1] for line in done.stdout.splitlines() if line.startswith("left "))
        subprocess.run(["kill", pid], capture_output=True, check=False)
        return done.stdout.count("\nFAILED ")

    assert failures() == 2, "the control"
    shutil.copy(root / "tests" / "conftest.py", tmp_path)
    assert failures() == 1
