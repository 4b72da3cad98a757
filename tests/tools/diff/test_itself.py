"""The real engine against itself: every trigger is named in turn, and with all of them off the two ways agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest
import torch

from samebits.kernels.adapters.setup import cpu_pieces
from samebits.tools.diff import triggers
from samebits.tools.diff.itself import diff_itself
from samebits.tools.job.job import Job
from samebits.tools.schema.artifacts.divergence import DivergenceManifest
from samebits.tools.schema.requests import DiffRequest
from samebits.tools.sides.transformers.tiny import write_tiny
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Two threads, so that the keys are split; no AMX, whose products differ by themselves where the CPU has it.
PLAIN = {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}


def looked(
    folder: Path,
    env: dict[str, str],
    dtype: Literal["float32", "bfloat16"] = "float32",
    against: str = "batch",
    prompt_tokens: tuple[int, int] = (150, 200),
    **sizes: int,
) -> DivergenceManifest:
    model = write_tiny(folder / "model", "qwen3", dtype, **sizes)
    longest = max(512, prompt_tokens[1] + 32)
    rollout = {"model": str(model), "dtype": dtype, "eager": True, "max_model_len": longest, "env": env}
    workload = {"prompts": 6, "prompt_tokens": prompt_tokens, "new_tokens": 8}
    experiment = {"device": "cpu", "rollout": rollout, "workload": workload}
    job = folder / "job"
    job.mkdir()
    running = Job(job)
    try:
        diff_itself(DiffRequest.model_validate({"experiment": experiment, "against": against}), running)
    finally:
        running.drop_prepared()
    return artifact.read(job / "divergence", DivergenceManifest)


@pytest.mark.slow
def test_the_split_of_the_keys_is_named_with_its_switch(tmp_path: Path) -> None:
    found = looked(tmp_path, PLAIN | {"VLLM_CPU_ATTN_SPLIT_KV": "1"})
    assert [item.kind for item in found.work] == ["attention"]
    assert found.work[0].cause.name == "order_batch"
    assert found.work[0].cause.switch == {"VLLM_CPU_ATTN_SPLIT_KV": "0"}
    assert found.gap.nonzero > 0
    assert found.unexplained.exact


@pytest.mark.slow
def test_with_the_split_off_nothing_is_named(tmp_path: Path) -> None:
    found = looked(tmp_path, PLAIN | {"VLLM_CPU_ATTN_SPLIT_KV": "0"})
    assert found.outcome.status == "identical"
    assert found.gap.exact
    assert not found.work


@pytest.mark.slow
@pytest.mark.parametrize("pieces", ["0", "1"])
def test_the_tile_of_a_long_prefill_is_named_with_its_switch(tmp_path: Path, pieces: str) -> None:
    keys = cpu_pieces.keys_of_a_prefill("vec", 128, 4, int(torch.cpu.get_capabilities()["l2_cache_size"]))
    assert keys is not None
    env = PLAIN | {"VLLM_CPU_ATTN_SPLIT_KV": "0", "OMP_NUM_THREADS": "1", cpu_pieces.VARIABLE: pieces}
    lengths = (3 * keys // 2, 3 * keys // 2 + 9)  # the last tile of queries is then nearly full
    found = looked(tmp_path, env, "float32", "decode_prefill", lengths, head_dim=128, max_position_embeddings=2 * keys)
    if pieces == "1":
        assert found.outcome.status == "identical"
        return
    assert [item.kind for item in found.work] == ["attention"]
    assert found.work[0].between == "model.layers.0.self_attn.attn"
    assert found.work[0].cause.switch == {cpu_pieces.VARIABLE: "1"}
    assert found.gap.nonzero > 0
    assert found.unexplained.exact


@pytest.mark.slow
@pytest.mark.skipif(
    not torch.cpu._is_amx_tile_supported(), reason="no AMX here: its products follow the number of rows"
)
def test_a_linear_that_follows_the_number_of_rows_is_named_when_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no switch known, the module run alone on its own inputs is the proof."""
    monkeypatch.setattr(triggers, "TRIGGERS", ())
    env = {name: value for name, value in PLAIN.items() if name != "ONEDNN_MAX_CPU_ISA"}
    found = looked(tmp_path, env | {"VLLM_CPU_ATTN_SPLIT_KV": "0", "OMP_NUM_THREADS": "1"}, dtype="bfloat16")
    assert [(item.kind, item.cause.name) for item in found.work] == [("linear", "order_batch")]
    assert "by themselves than among" in found.work[0].cause.why
    assert not found.work[0].cause.switch


@pytest.mark.usefixtures("sides_here")
@pytest.mark.parametrize(
    ("against", "why"),
    [
        ("batch", "the largest batch was 1 both times"),
        ("chunked_prefill", "this side has no such thing"),
        ("prefix_hit", "this side has no such thing"),
    ],
)
def test_a_way_that_took_no_effect_is_never_called_equal(
    models: Callable[..., Path], tmp_path: Path, against: str, why: str
) -> None:
    rollout = {"side": "transformers", "model": str(models()), "dtype": "float32"}
    workload = {"prompts": 3, "prompt_tokens": (4, 8), "new_tokens": 4}
    experiment = {"device": "cpu", "rollout": rollout, "workload": workload}
    result = diff_itself(DiffRequest.model_validate({"experiment": experiment, "against": against}), Job(tmp_path))
    found = artifact.read(tmp_path / "divergence", DivergenceManifest)
    assert (result.verdict, result.exit_code, found.outcome.status) == ("unjudged", 2, "incomparable")
    assert why in result.summary
    assert "[rollout] side" in str(result.next)
