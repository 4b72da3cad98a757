"""The model runner that inspect and the sides expect is the one vLLM takes."""

from __future__ import annotations

import os
from importlib import metadata
from typing import Any

import pytest

from samebits.tools.schema.errors import UserError
from samebits.tools.sides.vllm import hooks, which_runner
from samebits.tools.sides.vllm.which_runner import VARIABLE, runner_for

DENSE: dict[str, Any] = {"architectures": ["Qwen3ForCausalLM"]}
EXPERTS: dict[str, Any] = {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8}
LISTED: dict[str, Any] = {"architectures": ["Qwen2MoeForCausalLM"], "num_experts": 8}


@pytest.mark.parametrize(
    ("installed", "device", "model", "runner"),
    [
        ("0.26.0", "cuda", DENSE, "MRV2"),
        ("0.26.0", "cuda", EXPERTS, "V1"),
        ("0.26.0", "cuda", {"text_config": {"num_local_experts": 4}}, "V1"),
        ("0.26.0", "cuda", LISTED, "MRV2"),
        ("0.26.0", "cpu", DENSE, "V1"),
        ("0.32.0", "cpu", DENSE, "V1"),
        ("0.32.0", "cuda", EXPERTS, "MRV2"),
    ],
)
def test_the_default_is_that_of_vllms_source(installed: str, device: str, model: dict[str, Any], runner: str) -> None:
    assert runner_for(installed, device, {}, model, {}) == runner


def test_the_variable_of_vllm_decides_before_all_else() -> None:
    assert runner_for("0.26.0", "cuda", {VARIABLE: "0"}, DENSE, {}) == "V1"
    assert runner_for("0.32.0", "cpu", {VARIABLE: "1"}, DENSE, {}) == "MRV2"
    with pytest.raises(UserError, match=r"VLLM_USE_V2_MODEL_RUNNER=yes"):
        runner_for("0.26.0", "cuda", {VARIABLE: "yes"}, DENSE, {})


def test_what_the_second_runner_of_026_lacks_falls_back_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runner_for("0.26.0", "cuda", {}, DENSE, {"enable_return_routed_experts": True}) == "V1"
    assert runner_for("0.32.0", "cuda", {}, DENSE, {"enable_return_routed_experts": True}) == "MRV2"
    planted = metadata.EntryPoints([metadata.EntryPoint("p", "p:P", "vllm.logits_processors")])
    monkeypatch.setattr(which_runner, "entry_points", planted.select)
    assert runner_for("0.26.0", "cuda", {}, DENSE, {}) == "V1"


@pytest.mark.vllm
@pytest.mark.parametrize("variable", ["0", None])
def test_the_installed_vllm_agrees(variable: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.config import VllmConfig

    monkeypatch.delenv(VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(VARIABLE, variable)
    chosen = "MRV2" if VllmConfig().use_v2_model_runner else "V1"
    assert runner_for(hooks.vllm_version(), "cpu", os.environ, DENSE, {}) == chosen
