"""The tests run where pytest-timeout is not installed, as on many a GPU machine, and one that fails fails no other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def collected(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", *options]
    command.append("tests/layout/test_pytest.py")
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_TIMEOUT"}
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)


def test_no_plugin_is_needed_for_the_settings_to_be_known(root: Path) -> None:
    done = collected(root, "-p", "no:timeout")
    assert done.returncode == 0, done.stdout + done.stderr
    with_one = collected(root, "-p", "no:timeout", "--timeout=5")
    assert with_one.returncode != 0, "the control: the plugin is there"
    assert "unrecognized arguments: --timeout" in with_one.stderr


def test_no_test_runs_for_ever(root: Path) -> None:
    assert "timeout: 1200.0s" in collected(root).stdout
    assert "timeout: 1200.0s" not in collected(root, "--noconftest").stdout, "the control"


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
