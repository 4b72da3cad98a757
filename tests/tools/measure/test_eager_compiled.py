"""The axis that starts a second engine, compiled where the first is eager."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from samebits.tools.job.job import Job
from samebits.tools.measure import axes
from samebits.tools.measure.verb import run_measure
from samebits.tools.schema.artifacts.gap import GapReport
from samebits.tools.schema.experiment import Experiment
from samebits.tools.schema.requests import MeasureRequest
from samebits.tools.sides.protocol import RolloutData, Scores, Sequence
from samebits.tools.sides.transformers.tiny import write_tiny
from samebits.tools.store import artifact

STEADY = {"VLLM_CPU_ATTN_SPLIT_KV": "0", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(("after", "status"), [("NONE", "not_run"), ("VLLM_COMPILE", "varies")])
def test_it_counts_only_where_the_two_engines_say_that_they_are_compiled_differently(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, after: str, status: str
) -> None:
    """The engines are made up: what is asked is when their difference counts."""
    data = RolloutData([Sequence([1, 2], [3, 4])], torch.tensor([-1.0, -2.0]), torch.ones(2, dtype=torch.bool))
    plain, other = (Scores(lp_N, torch.ones(2, dtype=torch.bool)) for lp_N in (data.logprob_N, data.logprob_N * 2))

    def engine(compiled: str) -> Any:
        return SimpleNamespace(opened=SimpleNamespace(facts={"compiled": compiled}))

    opened: list[bool] = []

    def open_side(_role: str, experiment: Experiment) -> Any:
        opened.append(experiment.rollout.eager)
        return nullcontext(engine(after))

    sides: Any = SimpleNamespace(
        experiment=Experiment.model_validate({"rollout": {"eager": True}}),
        session=lambda _: engine("NONE"),
        close=lambda: None,
        job=SimpleNamespace(open_side=open_side),
    )
    monkeypatch.setattr(axes, "score_with", lambda *_: (other, tmp_path))
    found = axes._engine_axis(sides, tmp_path, data, plain)
    assert (found.outcome.status, opened) == (status, [False])


@pytest.mark.slow
@pytest.mark.vllm
def test_compiling_moves_the_logprobs_of_a_stock_engine(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "model", num_hidden_layers=1)
    (tmp_path / "job").mkdir()
    experiment = {
        "device": "cpu",
        "rollout": {"model": str(model), "eager": True, "max_model_len": 256, "env": STEADY},
        "workload": {"prompts": 4, "prompt_tokens": (8, 60), "new_tokens": 8},
    }
    asked = MeasureRequest.model_validate({"experiment": experiment, "axes": ("repeat", "eager_compiled")})
    result = run_measure(asked, Job(tmp_path / "job"))
    report = artifact.read(tmp_path / "job" / result.ids["gap"], GapReport)
    found = {axis.name: axis.outcome for axis in report.axes if axis.side == "rollout"}
    assert found["repeat"].status == "same", "the control: what moves them is no repetition"
    outcome = found["eager_compiled"]
    assert outcome.status == "varies"
    assert outcome.stats.nonzero > outcome.stats.tokens // 2
