"""Both sides of a job: opened when first asked, one at a time on a GPU, always closed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Self

from samebits.tools.job.job import device_of
from samebits.tools.schema.artifacts.weights import SideWeights
from samebits.tools.schema.passes import How, Reading, Readings, Score, Weights
from samebits.tools.sides import rollout_store

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    import torch

    from samebits.tools.job.job import Job
    from samebits.tools.schema.experiment import Experiment
    from samebits.tools.schema.passes import Done
    from samebits.tools.schema.sites import CapturePlan, Edit
    from samebits.tools.sides.protocol import Scores
    from samebits.tools.sides.session import Session

Role = Literal["rollout", "trainer"]


@dataclass(slots=True)
class Sides:
    """A context manager over the sessions of one job."""

    job: Job
    experiment: Experiment
    taps: bool = False
    """Open the rollout side with opaque taps in its compiled graph."""
    described: dict[str, Done] = field(default_factory=dict)
    """What each side said about itself when it was first opened."""
    _open: dict[str, Session] = field(default_factory=dict)

    def session(self, role: Role) -> Session:
        """The open session of a role. On a GPU the other one is closed first."""
        if role not in self._open:
            if device_of(self.experiment) == "cuda":
                self.close()
            session = self.job.open_side(role, self.experiment, taps=self.taps and role == "rollout")
            self._open[role] = session
            assert session.opened is not None
            self.described.setdefault(role, session.opened)
        return self._open[role]

    def close(self, role: Role | None = None) -> None:
        """End one or all sides."""
        for name in [role] if role is not None else list(self._open):
            session = self._open.pop(name, None)
            if session is not None:
                session.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._open:
            self._open.popitem()[1].__exit__(kind, error, trace)

    def score(
        self,
        role: Role,
        rollout: Path,
        how: How | None = None,
        capture: CapturePlan | None = None,
        edits: tuple[Edit, ...] = (),
    ) -> tuple[Scores, Path]:
        """Score a rollout in one way; returns the scores with their facts, and the folder of the pass."""
        return score_with(self.session(role), self.job, role, rollout, how or How(), capture, edits)

    def weights(self, role: Role) -> SideWeights:
        """Digests of every weight of a side."""
        return weights_with(self.session(role), self.job.new(f"weights-{role}"))

    def readings(self, rollout: Path, readings: tuple[Reading, ...]) -> dict[str, torch.Tensor]:
        """Columns of the trainer's logits under other readings."""
        return readings_with(self.session("trainer"), self.job.new("readings"), rollout, readings)


def score_with(
    session: Session,
    job: Job,
    role: str,
    rollout: Path,
    how: How,
    capture: CapturePlan | None = None,
    edits: tuple[Edit, ...] = (),
    *,
    folder: Path | None = None,
) -> tuple[Scores, Path]:
    """Score on a given session; the pass is kept in `folder`, or in a new one of this role."""
    folder = folder or job.new(f"scores-{role}")
    done = session.ask(Score(rollout=str(rollout), how=how, folder=str(folder), capture=capture, edits=edits))
    scores = rollout_store.read_scores(folder)
    scores.facts = dict(done.facts)
    return scores, folder


def readings_with(
    session: Session, folder: Path, rollout: Path, readings: tuple[Reading, ...]
) -> dict[str, torch.Tensor]:
    """Columns of the logits of a given session under other readings."""
    session.ask(Readings(rollout=str(rollout), readings=readings, folder=str(folder)))
    return rollout_store.read_columns(folder)


def weights_with(session: Session, folder: Path) -> SideWeights:
    """Digests of every weight of a given session."""
    session.ask(Weights(folder=str(folder)))
    return SideWeights.model_validate_json((folder / "weights.json").read_text(encoding="utf-8"))
