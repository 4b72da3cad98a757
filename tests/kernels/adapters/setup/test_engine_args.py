"""The engine's arguments against a lock: what can change a bit is named, what cannot is let through."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.setup import engine_args, proved, settings
from samebits.kernels.api import engine_options

ALL = ("batch", "chunked_prefill", "prefix_hit", "preemption", "graph_buckets", "eager_graph")
PROVED = {"dtype": "bfloat16", "eager": "True", "logprobs": "processed", "max_model_len": "512"}
NOW = {"max_model_len": 512, "enforce_eager": True, "logprobs_mode": "processed_logprobs"}


def changed(options: dict[str, Any], axes: tuple[str, ...] = (), engine: object = None, **kwargs: Any) -> list[str]:
    return engine_args.changed(PROVED | {"engine": repr(engine or {})}, axes, NOW | options, **kwargs)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_model_len": 2048}, "[rollout] max_model_len: proved 512, now 2048"),
        ({"max_model_len": None}, "[rollout] max_model_len: proved 512, now the model's own"),
        ({"max_model_len": -1}, "[rollout] max_model_len: proved 512, now -1"),
        ({"dtype": "float16"}, "[rollout] dtype: proved bfloat16, now float16"),
        ({"logprobs_mode": "raw_logprobs"}, "[rollout] logprobs: proved processed, now raw"),
        ({"enforce_eager": False}, "[rollout] eager: proved True, now False"),
        ({"block_size": 32}, "[rollout.engine] block_size: proved without, now 32"),
        ({"kv_cache_dtype": "fp8"}, "[rollout.engine] kv_cache_dtype: proved auto, now fp8"),
        ({"quantization": "fp8"}, "[rollout.engine] quantization: proved without, now fp8"),
        ({"compilation_config": 3}, "[rollout.engine] compilation_config: proved without, now 3"),
        ({"compilation_config": {"mode": 3}}, "[rollout.engine] compilation_config: proved without, now {'mode': 3}"),
        ({"tensor_parallel_size": 2}, "[rollout.engine] tensor_parallel_size: proved 1, now 2"),
        ({"an_argument_of_tomorrow": 1}, "[rollout.engine] an_argument_of_tomorrow: proved without, now 1"),
    ],
)
def test_what_can_change_a_bit_is_named_whatever_axes_were_proved(options: dict[str, Any], said: str) -> None:
    axes = tuple(axis for axis in ALL if axis != "eager_graph")
    assert changed({}, axes) == [], "the control"
    assert changed(options, axes) == [said]


@pytest.mark.parametrize(
    "options",
    [
        {"max_model_len": 511},
        {"dtype": "bfloat16"},
        {"dtype": "auto"},
        {"seed": 7, "disable_log_stats": True, "skip_tokenizer_init": False, "max_logprobs": 40},
        {"hf_token": "planted"},
        {"kv_cache_dtype": "auto", "tensor_parallel_size": 1, "quantization": None, "block_size": None},
    ],
)
def test_what_cannot_change_a_bit_is_let_through(options: dict[str, Any]) -> None:
    assert changed(options) == []


@pytest.mark.parametrize("name", sorted(set(engine_args.COVERED) - {"enforce_eager"}))
def test_what_an_axis_varies_is_compared_only_where_it_was_not_proved(name: str) -> None:
    other = [f"[rollout.engine] {name}: proved without, now 3"]
    assert changed({name: 3}, ALL) == []
    for axis in engine_args.COVERED[name]:
        left = tuple(other for other in ALL if other != axis)
        needed = axis != "graph_buckets"  # this engine is eager
        assert changed({name: 3}, left) == (other if needed else [])
    assert changed({}, (), {name: 3}) == [f"[rollout.engine] {name}: proved 3, now without"]


def test_eager_or_not_is_the_same_where_that_axis_was_proved() -> None:
    assert changed({"enforce_eager": False}, ("eager_graph",)) == []
    assert changed({"enforce_eager": False, "max_num_seqs": 8}, ("eager_graph", "batch")) == [
        "[rollout.engine] max_num_seqs: proved without, now 8"
    ]


def test_what_the_proved_engine_was_given_must_be_given_again() -> None:
    assert changed({"block_size": 32}, (), {"block_size": 32}) == []
    assert changed({}, (), {"block_size": 32}) == ["[rollout.engine] block_size: proved 32, now without"]
    assert changed({}, (), {"block_size": 32}, whole=False) == [], "nothing is known of what is not named"


def test_a_secret_is_neither_compared_nor_said_and_a_number_is_none() -> None:
    assert changed({"some_api_key": "planted"}) == []
    assert engine_args.private("hf_token", "planted")
    assert not engine_args.private("max_num_batched_tokens", 8192)


def test_a_long_value_is_cut() -> None:
    (line,) = changed({"hf_overrides": {"x": "y" * 500}})
    assert line.endswith(" ...")
    assert len(line) < 130


def lock(folder: Path, engine: str = "{}") -> Path:
    path = folder / "samebits.lock"
    held = {
        "schema_version": 1,
        "axes": {"batch": 32, "chunked_prefill": 32},
        "proved": {"rollout": proved.fingerprint("rollout")},
        "settings": {"rollout": PROVED | {"kernels": "none", "engine": engine}},
    }
    path.write_text(json.dumps(held), encoding="utf-8")
    return path


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process as `engine_options` leaves one; whatever it sets is taken back."""
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    monkeypatch.delenv(proved.ALLOW, raising=False)
    monkeypatch.setattr(settings, "check_plugin", lambda _: None)
    # With AMX switched off these say that there is none, in the whole process: later tests must ask the CPU again.
    for name in ("_is_amx_tile_supported", "_is_amx_fp16_supported"):
        if hasattr(torch.cpu, name):
            monkeypatch.setattr(torch.cpu, name, getattr(torch.cpu, name))
    found = settings.find("cpu", "vllm")[2]
    for name, value in (dict(found.variables) | dict(found.usual)).items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("ready")
def test_engine_options_names_every_changed_argument_in_one_error(tmp_path: Path) -> None:
    path = lock(tmp_path)
    options = engine_options(device="cpu", lock=path, max_model_len=512, max_num_batched_tokens=4096, seed=3)
    assert options["max_num_batched_tokens"] == 4096
    with pytest.raises(PatchError) as caught:
        engine_options(device="cpu", lock=path, max_model_len=2048, block_size=32, kv_cache_dtype="fp8")
    for said in ("max_model_len: proved 512, now 2048", "block_size: proved", "kv_cache_dtype: proved auto, now fp8"):
        assert said in caught.value.reason
    with pytest.warns(UserWarning, match="UNPROVEN.*block_size: proved without, now 32"):
        engine_options(device="cpu", lock=path, max_model_len=512, block_size=32, allow_unproven=True)


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize("engine", ["{", "3", "open('x')"])
def test_a_lock_whose_engine_is_no_mapping_is_refused(tmp_path: Path, engine: str) -> None:
    with pytest.raises(PatchError, match=r"\[rollout\] engine is .*run samebits gate again"):
        engine_options(device="cpu", lock=lock(tmp_path, engine), max_model_len=512)


@pytest.mark.vllm
def test_the_usual_values_are_those_of_this_vllm() -> None:
    from dataclasses import MISSING, fields

    from vllm.engine.arg_utils import EngineArgs

    own = {field.name: field.default for field in fields(EngineArgs) if field.default is not MISSING}
    assert {name: own[name] for name in engine_args.USUAL} == dict(engine_args.USUAL)
    known = {field.name for field in fields(EngineArgs)}
    assert {*engine_args.NO_BIT, *engine_args.COVERED, *engine_args.KEYS} <= known
