"""The whole diff on real models: planted operators are found, proven and put in order; nothing else is blamed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from samebits.tools.diff.verb import run_diff
from samebits.tools.job.job import Job
from samebits.tools.schema.artifacts.divergence import Diverged, DivergenceManifest, Identical
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import DiffRequest
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samebits.tools.schema.results import Result

pytestmark = pytest.mark.usefixtures("sides_here", "planted")


def diffed(
    model: Path, folder: Path, faults: str, trainer: dict[str, object] | None = None, **more: object
) -> tuple[Result, DivergenceManifest]:
    request = DiffRequest.model_validate(
        {
            "experiment": {
                "device": "cpu",
                "rollout": {"side": "python:planted_sides:factory", "model": str(model), "engine": {"faults": faults}},
                "trainer": {"logprob": "log_softmax"} | (trainer or {}),
                "workload": {"prompts": 6, "prompt_tokens": (8, 40), "new_tokens": 8},
            },
            **more,
        }
    )
    result = run_diff(request, Job(folder))
    return result, artifact.read(folder / result.ids["divergence"], DivergenceManifest)


def test_equal_sides_are_identical_and_something_was_compared(models: Callable[..., Path], tmp_path: Path) -> None:
    result, found = diffed(models(dtype="bfloat16"), tmp_path, "")
    assert result.verdict == "equal"
    assert isinstance(found.outcome, Identical)
    assert found.outcome.compared > 10
    assert found.gap.exact
    assert not found.work
    assert "gives all 48 logprobs that the rollout holds" in found.before[0]
    assert "one ulp at" in found.before[1]
    assert found.before[2].startswith("weights equal")


def test_a_planted_norm_is_the_only_operator_named_and_its_rounding_is_the_cause(
    models: Callable[..., Path], tmp_path: Path
) -> None:
    result, found = diffed(models(dtype="bfloat16"), tmp_path, "norm:1")
    assert result.verdict == "differs"
    assert [(item.kind, item.between) for item in found.work] == [("norm", "model.layers.1.post_attention_layernorm")]
    item = found.work[0]
    assert item.cause.name == "cast"
    assert item.proof.returns
    assert item.proof.equal_until == "the logprobs are equal"
    assert item.proof.trainer_replay is True
    assert item.effect.nonzero > 0
    assert found.unexplained.exact
    assert not found.gap.exact
    assert result.rows[0]["minimize"] == "yes"
    assert str(result.next).endswith("--operator 0")


def test_two_planted_operators_come_in_execution_order_each_with_its_effect(
    models: Callable[..., Path], tmp_path: Path
) -> None:
    _, found = diffed(models(dtype="bfloat16"), tmp_path, "linear:1,norm:0")
    assert [(item.kind, item.between) for item in found.work] == [
        ("norm", "model.layers.0.post_attention_layernorm"), ("linear", "model.layers.1.mlp.down_proj"),
    ]  # fmt: skip
    assert isinstance(found.outcome, Diverged)
    assert found.outcome.first == found.work[0]
    assert found.work[0].proof.equal_until != "the logprobs are equal", "the second one is still there"
    assert found.work[1].proof.equal_until == "the logprobs are equal"
    assert all(item.effect.nonzero for item in found.work)
    assert found.unexplained.exact


def test_a_merged_projection_is_paired_by_its_weights_and_not_blamed(
    models: Callable[..., Path], tmp_path: Path
) -> None:
    _, found = diffed(models(dtype="bfloat16"), tmp_path, "merged:0,norm:1")
    assert [item.between for item in found.work] == ["model.layers.1.post_attention_layernorm"]
    alignment = (tmp_path / "alignment" / "manifest.json").read_text(encoding="utf-8")
    assert "model.layers.0.self_attn.qkv_proj" in alignment


def test_planted_experts_are_named_with_their_router_in_sight(models: Callable[..., Path], tmp_path: Path) -> None:
    _, found = diffed(models("qwen3_moe", "bfloat16"), tmp_path, "experts:0")
    assert [item.kind for item in found.work] == ["experts"]
    assert found.work[0].trainer[0].module == "model.layers.0.mlp.experts"
    assert found.work[0].cause.name == "cast", found.work[0].cause.why
    assert "rollout: each expert's result is rounded, then weighted;" in found.work[0].cause.why
    assert found.unexplained.exact


def test_the_logprob_formula_is_an_operator_too(models: Callable[..., Path], tmp_path: Path) -> None:
    _, found = diffed(models(dtype="bfloat16"), tmp_path, "", trainer={"logprob": "logsumexp"})
    assert [item.kind for item in found.work] == ["logprob"]
    assert found.work[0].cause.name == "order_static"
    assert found.unexplained.exact


def test_a_rollout_that_is_none_is_refused(models: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match="no rollout artifact"):
        diffed(models(dtype="bfloat16"), tmp_path, "", rollout=str(tmp_path / "other"))
