"""What a side is, inside its own process. One implementation per foreign package.

Legend: S sequences, N sampled tokens in all, T token rows of one forward pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    import torch

    from samebits.tools.schema.artifacts.weights import SideModules, SideWeights
    from samebits.tools.schema.experiment import Workload
    from samebits.tools.schema.passes import How, Open, Reading, Step
    from samebits.tools.schema.sites import CapturePlan, Edit


@dataclass(slots=True, frozen=True)
class Sequence:
    """One prompt with what was sampled after it."""

    prompt: list[int]
    sampled: list[int]

    @property
    def tokens(self) -> list[int]:
        """Tokens that are fed to a model to score every sampled one: the last sampled token is never fed back."""
        return self.prompt + self.sampled[:-1]

    @property
    def scored(self) -> range:
        """Absolute positions whose next-token distribution gives the sampled tokens: row p predicts token p + 1."""
        return range(len(self.prompt) - 1, len(self.prompt) + len(self.sampled) - 1)


@dataclass(slots=True)
class RolloutData:
    """A rollout in memory."""

    sequences: list[Sequence]
    logprob_N: torch.Tensor
    """float32, nats."""
    valid_N: torch.Tensor
    """bool."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    logprobs: str = "processed"
    weight_version: int = 0
    source: str = ""
    """Of rows of a file: "PATH line" or "PATH row", and `lines`: the number of each sequence."""
    lines: list[int] = field(default_factory=list)

    def refused(self, i: int, reason: str, generated: str) -> UserError:
        """What is wrong with sequence i; `generated` is the next step where no file of rows holds it."""
        if self.lines:
            return UserError(f"{self.source} {self.lines[i]}", reason, "correct the row, or take it out of the file")
        return UserError(f"sequence {i} of the rollout", reason, generated)


@dataclass(slots=True)
class Scores:
    """Recomputed logprobs in the rollout's order."""

    logprob_N: torch.Tensor
    scored_N: torch.Tensor
    """bool: False where this way of scoring skipped the token."""
    facts: dict[str, str | int | float | bool | None] = field(default_factory=dict)
    """What really happened: chunked prefills seen, prefix hits, preemptions, largest batch."""


class Side(ABC):
    """A loaded model that can be asked."""

    @abstractmethod
    def describe(self) -> tuple[dict[str, str | int | float | bool | None], list[str]]:
        """Facts and lines for reports: versions, runner, attention backend, logprob mode, eager or compiled,
        kernels."""

    def generate(self, workload: Workload) -> RolloutData:
        """Sample a rollout. Only sides that can generate have it."""
        raise UserError(type(self).__name__, "does not generate tokens", "use it as the trainer, or give --rollout")

    @abstractmethod
    def score(
        self, data: RolloutData, how: How, plan: CapturePlan | None, edits: tuple[Edit, ...], folder: Path
    ) -> Scores:
        """Logprob of every sampled token. With a plan the Capture artifact is written to `folder / "capture"`."""

    @abstractmethod
    def weights(self) -> SideWeights:
        """Every weight as the operators see it."""

    @abstractmethod
    def modules(self) -> SideModules:
        """The module tree with what a forward pass calls."""

    def readings(self, data: RolloutData, readings: tuple[Reading, ...]) -> dict[str, torch.Tensor]:
        """Columns of `passes.Readings`, float64 [N]. Only trainers have it."""
        raise UserError(type(self).__name__, "has no logits to read", "use it as the rollout")

    def push(self, weights: Path, version: int, repair: bool, *, reset: bool = True) -> list[str]:
        """Load weights into the live side, reset caches, say which reload defects were found and worked round."""
        raise UserError(type(self).__name__, "takes no weights while it runs", "load the new model folder instead")

    def step(self, data: RolloutData, command: Step) -> dict[str, float]:
        """One policy-gradient update. Only trainers have it."""
        raise UserError(type(self).__name__, "is not trained", "use it as the rollout")

    def close(self) -> None:  # noqa: B027 (most sides have nothing to free)
        """Free engines and processes."""


def load(command: Open) -> Side:
    """The side that `command.config.side` names.

    Raises:
        UserError: unknown kind, missing package or model folder.
    """
    from samebits.kernels.adapters.setup import cpu_isa

    cpu_isa.apply()
    kind = command.config.side
    if kind == "vllm":
        from samebits.tools.sides.vllm.side import VllmSide

        return VllmSide.load(command)
    if kind == "transformers":
        from samebits.tools.sides.transformers.side import TransformersSide

        return TransformersSide.load(command)
    if kind.startswith("python:"):
        from samebits.tools.sides.python.side import PythonSide

        return PythonSide.load(command)
    raise UserError(f"side {kind!r}", "not known", 'use "vllm", "transformers" or "python:package.module:function"')
