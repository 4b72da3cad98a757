"""What the guard stores is where the other verbs start: real sides in this process, the same figures on both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from samebits.tools.diff.verb import run_diff
from samebits.tools.guard import Guard, NotExact
from samebits.tools.job.job import Job
from samebits.tools.measure.verb import run_measure
from samebits.tools.schema.artifacts.gap import GapReport
from samebits.tools.schema.experiment import Experiment
from samebits.tools.schema.passes import How
from samebits.tools.schema.requests import DiffRequest, MeasureRequest
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.usefixtures("sides_here")
def test_measure_and_diff_start_from_a_stored_batch(
    models: Callable[..., Path], open_side: Callable[..., Any], tmp_path: Path
) -> None:
    model = models()
    sides = {"rollout": {"side": "transformers", "model": str(model), "dtype": "float32"}}
    experiment = Experiment.model_validate(
        {
            "device": "cpu",
            **sides,
            "trainer": {"dtype": "float32"},
            "workload": {"prompts": 3, "prompt_tokens": (3, 9), "new_tokens": 4},
        }
    )
    data = open_side("rollout", model).generate(experiment.workload)
    trainer = open_side("trainer", model).score(data, How(), None, (), tmp_path)
    ids = {"prompt_ids": [s.prompt for s in data.sequences], "sampled_ids": [s.sampled for s in data.sequences]}
    with pytest.raises(NotExact) as caught:
        Guard(tmp_path / "guard").check(data.logprob_N, trainer.logprob_N, data.valid_N, 0, **ids)
    stored = str(caught.value.stored)
    (tmp_path / "measure").mkdir()
    (tmp_path / "diff").mkdir()
    result = run_measure(MeasureRequest(experiment=experiment, rollout=stored, axes=()), Job(tmp_path / "measure"))
    report = artifact.read(tmp_path / "measure" / result.ids["gap"], GapReport)
    assert (report.stats.nonzero, report.stats.tokens) == (caught.value.stats.nonzero, 12)
    assert report.stats.max == caught.value.stats.max
    found = run_diff(DiffRequest(experiment=experiment, rollout=stored, max_operators=1), Job(tmp_path / "diff"))
    assert found.ids["rollout"].endswith("rollout")
    assert found.verdict in ("differs", "unjudged")
