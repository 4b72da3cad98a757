"""The checkout's root and the files that git tracks in it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def root() -> Path:
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def tracked(root: Path) -> list[Path]:
    """Tracked files that are there, relative to the root."""
    run = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True)
    names = [Path(name) for name in run.stdout.decode().split("\0") if name]
    assert names, "git tracks no file here"
    return [name for name in names if (root / name).is_file()]
