"""Passes of one diff: asks a side to score the same rollout, with captures and edits, and counts the passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from samebits.tools.align.taps import Taps
from samebits.tools.job.sides import readings_with, score_with, weights_with
from samebits.tools.schema.passes import How
from samebits.tools.sides.protocol import Scores

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from samebits.tools.job.job import Job
    from samebits.tools.schema.artifacts.weights import SideWeights
    from samebits.tools.schema.passes import Reading
    from samebits.tools.schema.sites import CapturePlan, Edit
    from samebits.tools.sides.session import Session

PLAIN = How()


@dataclass
class Answer:
    """One pass: the logprobs, and the capture when one was asked for."""

    logprob_N: torch.Tensor
    scored_N: torch.Tensor
    folder: Path
    facts: dict[str, str | int | float | bool | None] = field(default_factory=dict)

    @property
    def scores(self) -> Scores:
        """Without the capture."""
        return Scores(self.logprob_N, self.scored_N, self.facts)

    @cached_property
    def taps(self) -> Taps:
        """The capture of this pass; opened once, since opening it checks the digest of every file."""
        return Taps.open(self.folder / "capture")


@dataclass(slots=True)
class Asker:
    """The open sides of a diff."""

    job: Job
    rollout: Path
    """Folder of the Rollout artifact."""
    sessions: dict[str, Session]
    passes: dict[str, int] = field(default_factory=dict)

    def score(
        self, role: str, name: str, plan: CapturePlan | None = None, edits: tuple[Edit, ...] = (), how: How = PLAIN
    ) -> Answer:
        """Run one pass. `name` is the folder it is kept under."""
        self.passes[role] = self.passes.get(role, 0) + 1
        folder = self.job.new(f"passes/{role}-{name}")
        scores, _ = score_with(self.sessions[role], self.job, role, self.rollout, how, plan, edits, folder=folder)
        return Answer(scores.logprob_N, scores.scored_N, folder, scores.facts)

    def readings(self, readings: tuple[Reading, ...]) -> dict[str, torch.Tensor]:
        """Columns of the trainer's logits under other readings."""
        return readings_with(self.sessions["trainer"], self.job.new("readings"), self.rollout, readings)

    def weights(self, role: str) -> SideWeights:
        """Weights of a side as its operators see them."""
        return weights_with(self.sessions[role], self.job.new(f"passes/{role}-weights"))
