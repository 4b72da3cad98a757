"""A rotary of the user's own module, wrong by more than rounding, comes apart from its attention and is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from samebits.tools.diff.verb import run_diff
from samebits.tools.job.job import Job
from samebits.tools.schema.artifacts.divergence import DivergenceManifest
from samebits.tools.schema.requests import DiffRequest
from samebits.tools.sides.transformers.tiny import write_tiny
from samebits.tools.store import artifact

STEADY = {"OMP_NUM_THREADS": "1", "VLLM_CPU_ATTN_SPLIT_KV": "0", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.parametrize("fault", ["rotary:0", ""])
def test_angles_in_bfloat16_are_named_and_can_be_cut_out(tmp_path: Path, fault: str) -> None:
    """Without the fault no rotary is called imprecise."""
    model = write_tiny(tmp_path / "model", "qwen3", "bfloat16", num_hidden_layers=1)
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))))
    trainer = {"side": "python:planted_sides:factory", "options": {"faults": fault}, "env": {"PYTHONPATH": path}}
    experiment = {
        "device": "cpu",
        "rollout": {"model": str(model), "dtype": "bfloat16", "eager": True, "max_model_len": 512, "env": STEADY},
        "trainer": trainer,
        "workload": {"prompts": 3, "prompt_tokens": (150, 300), "new_tokens": 4},
    }
    job = Job(tmp_path / "job")
    job.folder.mkdir()
    try:
        result = run_diff(DiffRequest.model_validate({"experiment": experiment}), job)
    finally:
        job.drop_prepared()
    found = artifact.read(job.folder / result.ids["divergence"], DivergenceManifest)
    rotary = [item for item in found.work if item.kind == "rotary"]
    assert [item.rollout[0].port for item in rotary] == ["out0", "out1"], [item.kind for item in found.work]
    for item in rotary:
        assert ("angles in the activation dtype" in item.cause.why) is bool(fault), item.cause.why
    assert all(item.cause.name == ("precision" if fault else "cast") for item in rotary)
    assert all(row["minimize"] == "yes" for row in result.rows if row["kind"] == "rotary")
    assert found.unexplained.exact
