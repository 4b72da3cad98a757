"""A rollout side that runs compiled: its operators are looked for in an eager one, and the part of the gap that is
compilation is said and blamed on no operator.

A compiled engine takes minutes to start, so here a python: side stands in for it: opened with `eager` false it has
other faults than eager. The last test has the real one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from samebits.tools.diff import compiled as compiled_engine
from samebits.tools.diff import itself, verb
from samebits.tools.diff.verb import run_diff
from samebits.tools.job.job import Job
from samebits.tools.schema.artifacts.divergence import DivergenceManifest
from samebits.tools.schema.requests import DiffRequest
from samebits.tools.sides.transformers.tiny import write_tiny
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from collections.abc import Callable

    from samebits.tools.schema.results import Result

STEADY = {"VLLM_CPU_ATTN_SPLIT_KV": "0", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, sides_here: None, planted: None) -> Callable[[str], None]:
    """compiled(faults): what is planted in the side while it is not eager, in place of the request's faults."""

    opened, now = Job.open_side, {"faults": ""}

    def open_side(self: Job, role: Any, experiment: Any, **more: Any) -> Any:
        if role == "rollout" and not experiment.rollout.eager:
            rollout = experiment.rollout.model_copy(update={"engine": dict(now)})
            experiment = experiment.model_copy(update={"rollout": rollout})
        return opened(self, role, experiment, **more)

    monkeypatch.setattr(Job, "open_side", open_side)
    for module in (verb, itself):
        monkeypatch.setattr(module, "runs_compiled", lambda experiment: not experiment.rollout.eager)
    return lambda faults: now.update(faults=faults)


def diffed(model: Path, folder: Path, faults: str, **more: object) -> tuple[Result, DivergenceManifest]:
    request = DiffRequest.model_validate(
        {
            "experiment": {
                "device": "cpu",
                "rollout": {"side": "python:planted_sides:factory", "model": str(model), "engine": {"faults": faults}},
                "trainer": {"logprob": "log_softmax"},
                "workload": {"prompts": 4, "prompt_tokens": (8, 30), "new_tokens": 8},
            },
            **more,
        }
    )
    folder.mkdir(exist_ok=True)
    result = run_diff(request, Job(folder))
    return result, artifact.read(folder / result.ids["divergence"], DivergenceManifest)


def test_only_operators_of_the_eager_engine_are_named_and_the_rest_is_said(
    models: Callable[..., Path], tmp_path: Path, compiled: Callable[[str], None]
) -> None:
    compiled("linear:1,norm:0")
    result, found = diffed(models(dtype="bfloat16"), tmp_path, "norm:0")
    assert [item.between for item in found.work] == ["model.layers.0.post_attention_layernorm"]
    assert found.unexplained.exact
    assert result.summary.startswith("The rollout side runs compiled: no hook runs inside a compiled graph")
    assert "tokens differ" in found.before[0].split("Eager against compiled: ")[1]
    assert "that part of the gap is in no operator named here" in result.summary


def test_a_trainer_equal_to_the_eager_engine_is_not_called_equal_to_the_compiled_one(
    models: Callable[..., Path], tmp_path: Path, compiled: Callable[[str], None]
) -> None:
    compiled("linear:1")
    result, found = diffed(models(dtype="bfloat16"), tmp_path, "")
    assert (result.verdict, found.outcome.status, found.work) == ("unjudged", "incomparable", ())
    assert "The trainer against the engine opened eager: every one of 32 logprobs is equal" in result.summary
    assert "rollout.eager = true" in str(result.next)


def test_where_compiling_moves_no_bit_what_is_found_holds_for_both(
    models: Callable[..., Path], tmp_path: Path, compiled: Callable[[str], None]
) -> None:
    compiled("")
    result, found = diffed(models(dtype="bfloat16"), tmp_path, "")
    assert (result.verdict, found.outcome.status) == ("equal", "identical")
    assert "0 of 32 tokens differ" in result.summary
    assert "holds for the compiled engine too" in result.summary


def test_ways_that_agree_in_the_compiled_engine_are_equal_and_no_eager_one_is_opened(
    models: Callable[..., Path], tmp_path: Path, compiled: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled("norm:0")
    monkeypatch.setattr(itself, "_searched", lambda *_: pytest.fail("an eager engine was asked"))
    result, found = diffed(models(dtype="bfloat16"), tmp_path, "", against="repeat")
    assert (result.verdict, result.summary) == ("equal", "compiled, the same call again: 32 logprobs equal to the bit")
    assert found.work == ()


def test_a_difference_that_the_compiled_engine_alone_has_is_blamed_on_no_operator(
    models: Callable[..., Path], tmp_path: Path, compiled: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled("")
    real, seen = compiled_engine.between_ways, []

    def apart(found: compiled_engine.Compiled) -> Any:
        assert found.other is not None
        found.other.logprob_N.view(torch.int32)[2] += 1
        seen.append(found)
        return real(found)

    monkeypatch.setattr(compiled_engine, "between_ways", apart)
    result, found = diffed(models(dtype="bfloat16"), tmp_path, "", against="repeat")
    assert len(seen) == 1
    assert (result.verdict, found.outcome.status, found.work) == ("unjudged", "incomparable", ())
    assert "compiled, the same call again: 1 of 32 tokens differ" in found.before[0]
    assert "the two ways differ in the compiled engine alone" in result.summary


def test_an_eager_engine_is_opened_once_and_nothing_is_said_of_compiling(
    models: Callable[..., Path], tmp_path: Path, sides_here: None, planted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, roles = Job.open_side, list[str]()
    monkeypatch.setattr(
        Job, "open_side", lambda self, role, *rest, **more: (roles.append(role), opened(self, role, *rest, **more))[1]
    )
    result, found = diffed(models(dtype="bfloat16"), tmp_path, "")
    assert roles == ["rollout", "trainer"]
    assert "compiled" not in result.summary + " ".join(found.before)


@pytest.mark.slow
@pytest.mark.vllm
def test_the_default_engine_is_diffed_eager_and_its_operators_are_those_of_the_eager_one(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "model", num_hidden_layers=1)
    (tmp_path / "job").mkdir()
    request = DiffRequest.model_validate(
        {
            "experiment": {
                "device": "cpu",
                "rollout": {"model": str(model), "max_model_len": 256, "env": STEADY},
                "workload": {"prompts": 3, "prompt_tokens": (8, 40), "new_tokens": 6},
            },
        }
    )
    result = run_diff(request, Job(tmp_path / "job"))
    found = artifact.read(tmp_path / "job" / result.ids["divergence"], DivergenceManifest)
    assert result.verdict == "differs"
    assert "Eager against compiled: " in found.before[0]
    assert len(found.work) > 3, "not the logprob alone"
    assert found.work[0].kind != "logprob"
    assert found.unexplained.exact


@pytest.mark.slow
@pytest.mark.vllm
def test_a_trigger_found_in_the_eager_engine_is_tried_on_the_compiled_one(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "model", "qwen3", "float32", num_hidden_layers=1)
    env = STEADY | {"VLLM_CPU_ATTN_SPLIT_KV": "1", "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
    rollout = {"model": str(model), "dtype": "float32", "max_model_len": 512, "env": env}
    workload = {"prompts": 4, "prompt_tokens": (150, 200), "new_tokens": 6}
    experiment = {"device": "cpu", "rollout": rollout, "workload": workload}
    (tmp_path / "job").mkdir()
    request = DiffRequest.model_validate({"experiment": experiment, "against": "batch"})
    result = run_diff(request, Job(tmp_path / "job"))
    found = artifact.read(tmp_path / "job" / result.ids["divergence"], DivergenceManifest)
    assert [item.cause.switch for item in found.work] == [{"VLLM_CPU_ATTN_SPLIT_KV": "0"}]
    assert not found.before[0].startswith("compiled, each sequence alone: 0 of")
    assert found.before[1].startswith("the compiled engine with VLLM_CPU_ATTN_SPLIT_KV=0: 0 of 24 tokens differ")
