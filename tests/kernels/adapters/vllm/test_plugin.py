"""An engine that SAMEBITS_KERNELS switches on (vllm serve, Ray) compares with the lock that its environment names."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.setup import proved
from samebits.kernels.adapters.vllm import install, plugin

CONFIG: Any = SimpleNamespace(model_config=SimpleNamespace(dtype=torch.bfloat16))


class Worker:
    """Stands in for vLLM's: what is asked of it is that its weights are not loaded before the comparison."""

    vllm_config = CONFIG
    loaded = False

    def load_model(self) -> None:
        self.loaded = True


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that proves this process as a rollout side, and is named by the environment."""
    path = tmp_path / "engine.lock"
    for name in (plugin.REQUEST, proved.ALLOW):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(proved.VARIABLE, str(path))
    monkeypatch.setattr(proved, "COMPARED", set())
    monkeypatch.setattr(install, "check", lambda _: None)
    monkeypatch.setattr(install, "install", lambda _: None)
    settings = {"kernels": "samebits", "dtype": "bfloat16"}
    held = {"proved": {"rollout": proved.fingerprint("rollout")}, "settings": {"rollout": settings}}
    held |= {"schema_version": 1, "axes": {"repeat": 32}}
    path.write_text(json.dumps(held), encoding="utf-8")
    return path


def load() -> Worker:
    worker = Worker()
    plugin._replaces_the_operators(Worker.load_model)(worker)
    return worker


def spoil(path: Path, **changed: str) -> None:
    held = json.loads(path.read_text(encoding="utf-8"))
    held["proved"]["rollout"] |= changed
    path.write_text(json.dumps(held), encoding="utf-8")


def test_the_proved_engine_starts_and_another_one_does_not(lock: Path) -> None:
    assert load().loaded
    proved.COMPARED.clear()
    spoil(lock, torch="1.0")
    with pytest.raises(PatchError, match=r"torch: proved 1\.0, now "):
        load()


def test_another_dtype_is_refused(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CONFIG.model_config, "dtype", torch.float16)
    with pytest.raises(PatchError, match="dtype: proved bfloat16, now float16"):
        load()


def test_a_lock_that_is_named_and_not_there_is_an_error(lock: Path) -> None:
    lock.unlink()
    with pytest.raises(PatchError, match="no lock file there"):
        load()


@pytest.mark.parametrize("reason", ["no lock is named", "the command line opened it", "engine_options compared"])
def test_who_does_not_compare(lock: Path, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    spoil(lock, torch="1.0")
    if reason == "no lock is named":
        monkeypatch.delenv(proved.VARIABLE)
    elif reason == "the command line opened it":
        monkeypatch.setenv(plugin.REQUEST, "request.json")
    else:
        with pytest.warns(UserWarning, match="UNPROVEN"):
            proved.compare("rollout", {}, None, True)
    assert load().loaded
