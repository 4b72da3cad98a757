"""RlReport: what the arms of an RL run saw, step by step, and how corrections compare with the exact gradient."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from samebits.tools.schema.artifacts.base import Manifest
from samebits.tools.schema.artifacts.gap import GapStats
from samebits.tools.schema.base import Model


class StepLine(Model):
    """One update: a line of metrics.jsonl. Its digest is that of the step's tokens, logprobs and new weights."""

    step: int
    """From 0."""
    reward: float
    """Mean over the answers sampled at this step."""
    solved: float
    """Share of them that are right in full."""
    gap: GapStats
    """Rollout against trainer, same weights, before the update: the batch sampled at this step."""
    gradient_norm: float
    """Before clipping."""
    loss: float
    entropy: float
    """Mean of -logprob of the sampled tokens, nats."""
    tokens: int
    version: int
    """Of the weights that sampled the batch trained on."""
    staleness: GapStats
    """The batch trained on: its stored rollout logprobs against the trainer at the weights of the update."""
    mean_weight: float
    """Of the importance weights; exactly 1 in an exact system without lag."""
    effective: float
    """Effective sample size of the weights, as a share."""
    kept: float
    """Share of tokens with a weight."""
    seconds: dict[str, float]
    """rollout, recompute, update, push."""
    digest: str


class Run(Model):
    """One arm at one lag."""

    arm: Literal["stock", "exact"]
    lag: int
    steps: tuple[StepLine, ...]
    not_exact: str = ""
    """Exact arm: what the guard said when it stopped the run."""
    resumed_at: int | None = None
    """First step after a resume."""
    unfinished: bool = False
    """Its time was over before its last step; a checkpoint was written."""

    @property
    def exact_steps(self) -> int:
        """Steps at which no valid token differed."""
        return sum(line.gap.exact for line in self.steps)


class CorrectionRow(Model):
    """One correction on the same mismatched rollouts."""

    name: str
    cosine: float
    """Mean over batches of the cosine with the exact gradient of the same batch; where a correction drops everything
    there is none."""
    relative: float
    """Mean over batches of |g - g*| / |g*|."""
    bias: float
    """|mean over batches of (g - g*)| / |mean of g*|."""
    noise: float
    """The part of `bias` that so few batches explain by chance: |standard error of that mean| / |mean of g*|."""
    k3: float
    """k3 KL between rollout and trainer over the tokens that have a weight (with routing replayed: after it)."""
    kept: float
    truncated: float
    """Share of tokens whose weight is not their ratio."""
    seconds: float
    """Median of the batches: the trainer's work with this correction; on a CPU in seconds of CPU time."""
    note: str = ""


class Compared(Model):
    """Every correction on the same rollouts."""

    rows: tuple[CorrectionRow, ...]
    mismatch: GapStats
    """Stock trainer against the rollouts, all batches."""
    truth: GapStats
    """Exact trainer against the same rollouts."""
    notes: tuple[str, ...]
    left_out: int = 0
    """Batches that none of this is about: their exact gradient is zero (all answers to a prompt have one reward)."""


class RlReport(Manifest):
    """report.html is the page; plots are SVG files; metrics of every run lie in metrics-ARM-LAG.jsonl."""

    kind: Literal["rl"] = "rl"
    what: Literal["train", "corrections", "stale"]
    model: str
    setting: str
    """The loop in words: task, sizes, rate, correction."""
    runs: tuple[Run, ...] = ()
    compared: Compared | None = None
    """What was asked for with corrections."""
    sides: dict[str, tuple[str, ...]]
    """What really ran, by arm."""
    seconds: float


class Done(Model):
    state: Literal["done"] = "done"


class Refused(Model):
    """Something the user gave."""

    state: Literal["refused"] = "refused"
    thing: str
    reason: str
    next_step: str


class Broken(Model):
    """The process raised; the traceback is in its log."""

    state: Literal["broken"] = "broken"
    message: str


class Ended(Model):
    """ended.json of a child process of the loop."""

    how: Annotated[Done | Refused | Broken, Field(discriminator="state")]
