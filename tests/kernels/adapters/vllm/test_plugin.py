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

CONFIG: Any = SimpleNamespace(
    model_config=SimpleNamespace(
        dtype=torch.bfloat16,
        max_model_len=512,
        enforce_eager=False,
        logprobs_mode="processed_logprobs",
        quantization=None,
    ),
    cache_config=SimpleNamespace(cache_dtype="auto", block_size=16, user_specified_block_size=False),
    parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
)


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
    settings = {"kernels": "samebits", "dtype": "bfloat16", "eager": "False", "logprobs": "processed"}
    settings |= {"max_model_len": "512", "engine": "{'kv_cache_memory_bytes': 1}"}
    held = {"proved": {"rollout": proved.fingerprint("rollout")}, "settings": {"rollout": settings}}
    more = {"schema_version": 1, "axes": {"repeat": 32}}
    path.write_text(json.dumps(held | more), encoding="utf-8")
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


def test_other_arguments_are_refused_in_one_error(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[tuple[str, str, object, str]] = [
        ("model_config", "dtype", torch.float16, "dtype: proved bfloat16, now float16"),
        ("model_config", "max_model_len", 2048, "max_model_len: proved 512, now 2048"),
        ("model_config", "enforce_eager", True, "eager: proved False, now True"),
        ("model_config", "logprobs_mode", "raw_logprobs", "logprobs: proved processed, now raw"),
        ("model_config", "quantization", "fp8", "quantization: proved without, now fp8"),
        ("cache_config", "cache_dtype", "fp8", "kv_cache_dtype: proved auto, now fp8"),
        ("cache_config", "user_specified_block_size", True, "block_size: proved without, now 16"),
        ("parallel_config", "tensor_parallel_size", 2, "tensor_parallel_size: proved 1, now 2"),
        ("parallel_config", "pipeline_parallel_size", 2, "pipeline_parallel_size: proved 1, now 2"),
    ]
    for section, name, value, _ in changes:
        monkeypatch.setattr(getattr(CONFIG, section), name, value)
    with pytest.raises(PatchError) as caught:
        load()
    assert [said for *_, said in changes if said not in caught.value.reason] == []


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


class Asked(torch.nn.Parameter):
    """A weight as vLLM's: a subclass that is asked about every function and changes none."""

    calls = 0

    def __new__(cls, data: torch.Tensor) -> Asked:
        return super().__new__(cls, data, requires_grad=False)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def asked(call: Any) -> int:
    """How often the class of a weight was asked while compiled code ran with it."""
    before, weight = Asked.calls, Asked(torch.ones(3, 2))
    assert torch.equal(call(SimpleNamespace(), torch.ones(2, 3), weight), torch.full((2, 2), 3.0))
    found = Asked.calls - before
    assert weight.sum().item() == 6  # outside, for example in a reload, it is asked as ever
    assert Asked.calls > before + found
    return found


def test_compiled_code_takes_weights_without_asking_their_class() -> None:
    def compiled(self: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x @ weight

    assert asked(compiled) > 0
    assert asked(plugin._asks_no_class(compiled)) == 0
