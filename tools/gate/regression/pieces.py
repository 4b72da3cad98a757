"""A gate in pieces: what an earlier one proved is taken over when it was about the same thing, by digest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.tools.schema.artifacts.regression import (
    THROUGHPUT,
    AxisName,
    AxisRow,
    NotRun,
    RegressionReport,
    Throughput,
)
from samebits.tools.schema.errors import UserError
from samebits.tools.store import artifact

if TYPE_CHECKING:
    import torch

    from samebits.tools.job.job import Job
    from samebits.tools.job.rollouts import Source

ELSEWHERE = "not in this piece: go on from it with --resume"
DONE = ("exact", "differs", "too_few", "vacuous")
"""Outcomes that are not tried again: there are no reruns."""


@dataclass(slots=True, frozen=True)
class Earlier:
    """A report to go on from."""

    folder: Path
    report: RegressionReport
    rollout: Path
    """The rollout it was about."""

    @property
    def done(self) -> frozenset[str]:
        """Axes with a verdict, and a throughput that was measured."""
        found = {str(row.name) for row in self.report.axes if row.outcome.status in DONE}
        return frozenset(found | ({THROUGHPUT} if isinstance(self.report.throughput, Throughput) else set()))

    def columns(self) -> dict[str, torch.Tensor]:
        """Its stored columns."""
        return artifact.load_tensors(self.folder, "gate.safetensors")


def earlier(given: str, subject: str, rollout: str | None = None) -> Earlier:
    """The report of an earlier piece, checked.

    Args:
        given: its folder, or the job folder that holds it.
        subject: of this gate.
        rollout: where its rollout may lie, besides beside it. Its digest decides.

    Raises:
        UserError: nothing there, damaged, of another subject, or its rollout is gone.
    """
    folder = Path(given)
    folder = folder / "gate" if (folder / "gate").is_dir() else folder
    report = artifact.read(folder, RegressionReport)
    if report.subject != subject:
        raise UserError(
            str(folder),
            "is about something else: settings, weights, machine, packages or kernels changed since",
            "leave --resume out and run the whole gate",
        )
    wanted = report.made_from["rollout"]
    named = [] if rollout is None else [Path(rollout)]
    for place in (*named, *sorted(folder.parent.iterdir())):
        if (place / artifact.MANIFEST).is_file() and artifact.identity(place) == wanted:
            return Earlier(folder, report, place)
    where = "".join(f", nor is it {place}" for place in named)
    raise UserError(
        str(folder),
        f"its rollout (sha256 {wanted[:12]}) is not beside it: no artifact in {folder.parent} has this digest{where}",
        "keep job folders whole to go on from them, or name that rollout with --rollout",
    )


def kept(source: Source, job: Job) -> Source:
    """The rollout in this job's own folder: another piece can then go on from it, wherever the first one is."""
    if source.folder.resolve().parent == job.folder.resolve():
        return source
    folder = job.new("rollout")
    artifact.copy(source.folder, folder)
    assert artifact.identity(folder) == artifact.identity(source.folder)
    return replace(source, folder=folder)


def merged(rows: list[AxisRow], before: Earlier | None, required: tuple[AxisName, ...]) -> list[AxisRow]:
    """New rows and those taken over, each axis once; what is required is what is required now."""
    own = {row.name for row in rows}
    kept = [] if before is None else [row for row in before.report.axes if row.name not in own]
    return [row.model_copy(update={"required": row.name in required}) for row in (*rows, *kept)]


def absent(name: AxisName) -> AxisRow:
    """An axis that [gate] requires, that this piece was not asked for and no earlier one has."""
    return AxisRow(name=name, required=True, outcome=NotRun(reason=ELSEWHERE), seconds=0.0)
