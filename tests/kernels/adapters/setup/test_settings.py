"""Settings of an engine and a trainer that must agree: what is refused, and that nothing is half set."""

from __future__ import annotations

import sys

import pytest

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.setup import settings


def test_on_cpu_the_engine_as_it_is_and_on_cuda_the_library() -> None:
    device, kernels, found = settings.find("cpu", "auto")
    assert (device, kernels) == ("cpu", "vllm")
    assert found.variables["VLLM_CPU_ATTN_SPLIT_KV"] == "0"
    assert found.variables["SAMEBITS_CPU_ATTN_PIECES"] == "1"
    assert "AMX" not in found.variables["ONEDNN_MAX_CPU_ISA"]
    assert settings.DEFAULT["cuda"] == "samebits"


@pytest.mark.parametrize(
    ("device", "kernels", "said"),
    [("tpu", "auto", "device 'tpu'"), ("cpu", "samebits", "use one of: vllm on cpu"), ("cpu", "none", "not known")],
)
def test_an_unknown_pair_is_refused(device: str, kernels: str, said: str) -> None:
    with pytest.raises(PatchError, match=said):
        settings.find(device, kernels)


def test_a_variable_of_another_value_is_an_error_and_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "vllm", raising=False)  # another test of this process may have imported it
    found = settings.Settings({"A": "1", "B": "0"}, {})
    environment = {"B": "1"}
    with pytest.raises(PatchError, match="B=1: must be 0"):
        settings.put(found, environment)
    assert environment == {"B": "1"}
    environment = {"B": "0"}
    settings.put(found, environment)
    assert environment == {"A": "1", "B": "0"}


def test_vllm_imported_too_early_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", object())
    with pytest.raises(PatchError, match="was not set when vllm was imported"):
        settings.put(settings.Settings({"A": "1"}, {}), {})
    settings.put(settings.Settings({"A": "1"}, {}), {"A": "1"})


def test_arguments_that_the_bits_depend_on_cannot_be_changed_and_others_can() -> None:
    _, _, found = settings.find("cpu", "vllm")
    merged = settings.merge(found, {"max_model_len": 512, "seed": 7})
    assert merged == {
        "max_model_len": 512,
        "seed": 7,
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "logprobs_mode": "processed_logprobs",
    }
    with pytest.raises(PatchError, match="enforce_eager=False: must be True"):
        settings.merge(found, {"enforce_eager": False})


def test_an_engine_that_would_not_load_the_plugin_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings.find("cpu", "vllm")[2]
    settings.check_plugin(found, {})
    settings.check_plugin(found, {"VLLM_PLUGINS": "other,samebits"})
    with pytest.raises(PatchError, match="VLLM_PLUGINS=other: keeps the samebits plugin out"):
        settings.check_plugin(found, {"VLLM_PLUGINS": "other"})
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ())
    with pytest.raises(PatchError, match="is no plugin of this vLLM"):
        settings.check_plugin(found, {})
    settings.check_plugin(settings.Settings({"A": "1"}, {}), {"VLLM_PLUGINS": ""})
