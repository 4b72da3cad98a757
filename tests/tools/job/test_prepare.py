"""A side whose process was started ahead is the one that is opened, when it is the same side; else it is ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from samebits.tools.job.job import Job
from samebits.tools.schema.experiment import Experiment
from samebits.tools.sides.session import SideDied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    made = Job(tmp_path)
    yield made
    made.drop_prepared()


@pytest.fixture
def experiment(models: Callable[..., Path]) -> Experiment:
    return Experiment.model_validate(
        {"device": "cpu", "rollout": {"model": str(models())}, "trainer": {"dtype": "float32"}}
    )


def test_the_prepared_process_is_opened_and_one_of_another_environment_is_not(job: Job, experiment: Experiment) -> None:
    job.prepare("trainer", experiment)
    job.prepare("trainer", experiment)
    (waiting,) = job.prepared.values()
    with job.open_side("trainer", experiment, env={"A": "1"}) as other:
        assert other.process.pid != waiting.process.pid
    with job.open_side("trainer", experiment) as opened:
        assert opened is waiting
        assert opened.opened is not None
    assert not job.prepared


def test_what_is_never_opened_is_ended(job: Job, experiment: Experiment) -> None:
    job.prepare("trainer", experiment)
    (waiting,) = job.prepared.values()
    job.drop_prepared()
    assert waiting.process.poll() is not None


def test_a_prepared_process_that_died_is_said_to_have_died(job: Job, experiment: Experiment) -> None:
    job.prepare("trainer", experiment)
    (waiting,) = job.prepared.values()
    waiting.process.kill()
    waiting.process.wait()
    with pytest.raises(SideDied, match="killed by signal 9"):
        job.open_side("trainer", experiment)


def test_with_one_core_nothing_is_prepared(job: Job, experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    job.prepare("trainer", experiment)
    assert not job.prepared


def test_a_kept_side_goes_on_to_the_next_verb_that_asks_for_the_same(job: Job, experiment: Experiment) -> None:
    job.keep("trainer", experiment)
    with job.open_side("trainer", experiment) as first:
        pass
    part = Job(job.folder, prepared=job.prepared, kept=job.kept)
    moved = experiment.model_copy(update={"trainer": experiment.trainer.model_copy(update={"env": {"A": "1"}})})
    part.prepare("trainer", experiment)
    assert not part.prepared
    with part.open_side("trainer", experiment) as second, part.open_side("trainer", moved) as other:
        assert second is first
        assert other is not first
    assert first.running
    assert not other.running
    job.release("trainer", experiment)
    assert not first.running
    assert first.process.poll() is not None
    first.end()  # once more: its descriptors may be those of other files by now


def test_an_environment_counts_once_whether_the_experiment_or_the_call_gives_it(
    job: Job, experiment: Experiment
) -> None:
    moved = experiment.model_copy(update={"trainer": experiment.trainer.model_copy(update={"env": {"A": "1"}})})
    job.keep("trainer", moved)
    with job.open_side("trainer", experiment, env={"A": "1"}) as first, job.open_side("trainer", moved) as second:
        assert second is first


def test_a_side_of_other_settings_is_not_the_kept_one(job: Job, experiment: Experiment) -> None:
    other = experiment.model_copy(update={"trainer": experiment.trainer.model_copy(update={"micro_batch": 3})})
    job.keep("trainer", experiment)
    with job.open_side("trainer", experiment) as first, job.open_side("trainer", other) as second:
        assert second is not first


def test_a_kept_side_whose_work_was_broken_off_is_opened_anew(job: Job, experiment: Experiment) -> None:
    job.keep("trainer", experiment)
    with pytest.raises(RuntimeError), job.open_side("trainer", experiment) as first:
        raise RuntimeError
    assert not first.running
    with job.open_side("trainer", experiment) as second:
        assert second is not first
    assert second.running
    job.drop_prepared()
    assert not second.running


def test_on_a_gpu_nothing_is_kept(job: Job, experiment: Experiment) -> None:
    job.keep("trainer", experiment.model_copy(update={"device": "cuda"}))
    assert not job.kept
