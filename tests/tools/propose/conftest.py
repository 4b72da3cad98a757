"""The kit of this folder, and a home of its own for every test."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()


@pytest.fixture(scope="session")
def kit() -> ModuleType:
    """kit.py; tests/ is no package."""
    spec = importlib.util.spec_from_file_location("samebits_propose_kit", Path(__file__).with_name("kit.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(kit: ModuleType, tmp_path: Path) -> Path:
    """A user's repository."""
    made: Path = kit.repository(tmp_path / "project")
    return made
