"""The tests run where pytest-timeout is not installed, as on many a GPU machine."""

from __future__ import annotations

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
