"""The real engine against itself: every trigger is named in turn, and with all of them off the two ways agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from samebits.tools.diff.itself import diff_itself
from samebits.tools.job.job import Job
from samebits.tools.schema.artifacts.divergence import DivergenceManifest
from samebits.tools.schema.requests import DiffRequest
from samebits.tools.sides.transformers.tiny import write_tiny
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from pathlib import Path

# Two threads, so that the keys are split; no AMX, whose products differ by themselves where the CPU has it.
PLAIN = {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}


def looked(folder: Path, env: dict[str, str]) -> DivergenceManifest:
    model = write_tiny(folder / "model", "qwen3", "float32")
    rollout = {"model": str(model), "dtype": "float32", "eager": True, "max_model_len": 512, "env": env}
    workload = {"prompts": 6, "prompt_tokens": (150, 200), "new_tokens": 8}
    experiment = {"device": "cpu", "rollout": rollout, "workload": workload}
    job = folder / "job"
    job.mkdir()
    diff_itself(DiffRequest.model_validate({"experiment": experiment, "against": "batch"}), Job(job))
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
