"""The rollout a verb works on: a stored artifact, a file of rows, or a fresh one from the open engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from samebits.tools.schema.passes import Generate
from samebits.tools.sides import rollout_store

if TYPE_CHECKING:
    from samebits.tools.job.job import Job
    from samebits.tools.schema.experiment import Experiment
    from samebits.tools.sides.session import Session


def obtain(given: str | None, experiment: Experiment, engine: Session, job: Job) -> Path:
    """Folder of the Rollout artifact.

    Args:
        given: an artifact folder, or a JSONL or parquet file of rows; None: the engine generates by the experiment's
        workload.

    Raises:
        UserError: not a rollout, damaged, or rows that are not valid.
    """
    if given is None:
        folder = job.new("rollout")
        job.emit("rollout", f"{experiment.workload.prompts} prompts, {experiment.workload.new_tokens} new tokens each")
        engine.ask(Generate(workload=experiment.workload, folder=str(folder)))
        return folder
    path = Path(given)
    if path.is_dir():
        rollout_store.read(path)
        return path
    from samebits.tools.sides.rows_file import read_rows

    folder = job.new("rollout")
    rollout_store.write(folder, read_rows(path), side=str(path))
    return folder
