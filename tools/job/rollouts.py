"""The rollout a verb works on: a stored artifact, a file of rows, or a fresh one from the open engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from samebits.tools.schema.errors import UserError
from samebits.tools.schema.passes import Generate
from samebits.tools.sides import rollout_store

if TYPE_CHECKING:
    from samebits.tools.job.job import Job
    from samebits.tools.schema.experiment import Experiment
    from samebits.tools.sides.session import Session


def obtain(given: str | None, experiment: Experiment, engine: Session, job: Job) -> Path:
    """Folder of the Rollout artifact: what was given, or what the engine generates by the experiment's workload."""
    return generated(experiment, engine, job) if given is None else stored(Path(given), job)


def generated(experiment: Experiment, engine: Session, job: Job) -> Path:
    """A fresh rollout."""
    folder = job.new("rollout")
    workload = experiment.workload
    job.emit("rollout", f"{workload.prompts} prompts, {workload.new_tokens} new tokens each")
    engine.ask(Generate(workload=workload, folder=str(folder)))
    return folder


def stored(path: Path, job: Job) -> Path:
    """An artifact folder as it is, or the artifact made from a JSONL or parquet file of rows.

    Raises:
        UserError: nothing there, not a rollout, damaged, or rows that are not valid.
    """
    if path.is_dir():
        rollout_store.read(path)
        return path
    if not path.exists():
        raise UserError(
            str(path), "no rollout here", "give the folder of a rollout artifact, or a .jsonl or .parquet file of rows"
        )
    from samebits.tools.sides.rows_file import read_rows

    job.emit("rollout", f"reading {path}")
    data = read_rows(path)
    folder = job.new("rollout")
    rollout_store.write(folder, data, side=str(path))
    return folder
