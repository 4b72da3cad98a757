"""The loop itself: sample, recompute, guard, update, push.

Legend: S sequences, N sampled tokens in all.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from samebits.tools.guard import Guard, NotExact
from samebits.tools.measure.gap import stats
from samebits.tools.rl import corrections
from samebits.tools.rl.policy import Centered
from samebits.tools.rl.task import draw, sampling_seeds
from samebits.tools.schema.artifacts.rl import StepLine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samebits.tools.rl.checkpoint import Store
    from samebits.tools.rl.policy import Policy
    from samebits.tools.rl.task import Sort
    from samebits.tools.schema.artifacts.gap import GapStats
    from samebits.tools.schema.experiment import Experiment, Rl
    from samebits.tools.sides.protocol import RolloutData
    from samebits.tools.sides.vllm.live import Drawn, Head, LiveEngine

    Tell = Callable[[StepLine], None]


@dataclass(slots=True)
class Sampled:
    """One batch as the engine gave it."""

    data: RolloutData
    reward_S: torch.Tensor
    head: Head | None = None


@dataclass(slots=True)
class Clock:
    """Seconds by part of a step."""

    parts: dict[str, float] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)

    def lap(self, name: str) -> None:
        """What has passed belongs to `name`."""
        now = time.monotonic()
        self.parts[name] = self.parts.get(name, 0.0) + now - self.begun
        self.begun = now


@dataclass(slots=True)
class Loop:
    """One arm at one lag: everything that a step needs and everything that it changes."""

    arm: Literal["stock", "exact"]
    engine: LiveEngine
    policy: Policy
    task: Sort
    settings: Rl
    seed: int
    temperature: float
    lag: int
    guard: Guard
    step: int = 0
    drawn: int = 0
    """Batches sampled so far."""
    waiting: deque[Sampled] = field(default_factory=deque)
    """Sampled, not yet trained on; the oldest first."""

    @classmethod
    def of(
        cls,
        arm: Literal["stock", "exact"],
        experiment: Experiment,
        engine: LiveEngine,
        policy: Policy,
        task: Sort,
        lag: int,
        folder: Path,
    ) -> Loop:
        """A loop at its first step; the guard stops the exact arm and only counts in the stock one."""
        workload = experiment.workload
        guard = Guard(folder, "raise" if arm == "exact" else "continue", temperature=workload.temperature)
        return cls(arm, engine, policy, task, experiment.rl, workload.seed, workload.temperature, lag, guard)

    def one_step(self) -> StepLine:
        """Sample (at the first step `lag` batches more), check, train on the oldest batch, push.

        Raises:
            NotExact: exact arm: a token differs; nothing was updated.
            UserError: no valid token, a logprob that is not finite, a sequence the trainer cannot take, weights that
                are not finite any more or did not arrive.
        """
        clock = Clock()
        while len(self.waiting) <= self.lag:
            batch = self._sample()
            clock.lap("rollout")
            trainer_N = self.policy.recompute(batch.data)
            gap = self._check(batch.data, trainer_N)
            clock.lap("recompute")
            self.waiting.append(batch)
        fresh = batch
        old = self.waiting.popleft()
        if old is not fresh:
            trainer_N = self.policy.recompute(old.data)
        weights, loss = learn(self.policy, old, trainer_N, self.settings)
        staleness = stats(old.data.logprob_N, trainer_N, old.data.valid_N)
        norm = self.policy.update(f"update {self.step + 1}")
        clock.lap("update")
        self._push()
        clock.lap("push")
        self.step += 1
        return StepLine(
            step=self.step - 1,
            reward=float(fresh.reward_S.mean()),
            solved=float((fresh.reward_S == 1).float().mean()),
            gap=gap,
            gradient_norm=norm,
            loss=loss,
            entropy=-float(fresh.data.logprob_N.double().mean()),
            tokens=len(fresh.data.logprob_N),
            version=old.data.weight_version,
            staleness=staleness,
            mean_weight=weights.mean,
            effective=weights.effective,
            kept=weights.kept,
            seconds=clock.parts,
            digest=self._digest(fresh, old, trainer_N),
        )

    def _sample(self) -> Sampled:
        settings = self.settings
        asked = draw(self.task, settings.prompts, self.seed, self.drawn)
        prompts = [prompt for prompt in asked for _ in range(settings.group)]
        seeds = sampling_seeds(len(prompts), self.seed, self.drawn)
        top = settings.top if settings.correction == "centering" else 0
        drawn = self.engine.sample(
            prompts, seeds, new_tokens=self.task.new_tokens, temperature=self.temperature, top=top
        )
        self.drawn += 1
        return rewarded(drawn, self.task)

    def _check(self, data: RolloutData, trainer_N: torch.Tensor) -> GapStats:
        return self.guard.check(
            data.logprob_N,
            trainer_N,
            data.valid_N,
            data.weight_version,
            prompt_ids=[sequence.prompt for sequence in data.sequences],
            sampled_ids=[sequence.sampled for sequence in data.sequences],
        )

    def _push(self) -> None:
        self.policy.push(self.engine.llm)
        self.engine.version = self.step + 1
        every = self.settings.read_back_every
        if every and self.step % every == 0:
            self.engine.check_holds(self.policy.checkpoint(), f"weights of version {self.engine.version}")

    def _digest(self, fresh: Sampled, old: Sampled, trainer_N: torch.Tensor) -> str:
        total = hashlib.sha256(self.policy.digest().encode())
        for batch in (fresh, old):
            total.update(repr([sequence.sampled for sequence in batch.data.sequences]).encode())
            total.update(batch.data.logprob_N.numpy().tobytes())
        total.update(trainer_N.numpy().tobytes())
        return total.hexdigest()[:32]


def rewarded(drawn: Drawn, task: Sort) -> Sampled:
    """The batch with its rewards."""
    rewards = [task.reward(sequence.prompt, sequence.sampled) for sequence in drawn.data.sequences]
    return Sampled(drawn.data, torch.tensor(rewards), drawn.head)


def learn(policy: Policy, batch: Sampled, trainer_N: torch.Tensor, settings: Rl) -> tuple[corrections.Weights, float]:
    """Gradient of the loss into the parameters: -sum(A * w * scale * logprob), and what Score Centering adds."""
    data, name = batch.data, settings.correction
    lengths = [len(sequence.sampled) for sequence in data.sequences]
    weights = corrections.weigh(name, trainer_N, data.logprob_N, data.valid_N, lengths, settings)
    advantage_S = corrections.advantages(name, batch.reward_S, settings)
    advantage_N = advantage_S.repeat_interleave(torch.tensor(lengths))
    scaled_N = advantage_N * weights.scale_N
    centered = None
    if name == "centering":
        assert batch.head is not None, "Score Centering needs the engine's best logprobs"
        centered = Centered(batch.head, scaled_N, settings.cap)
    return weights, policy.gradient(data, scaled_N * weights.weight_N, centered)


def run(loop: Loop, store: Store, steps: int, tell: Tell, ends: float = math.inf) -> str:
    """Step until `steps` are done or it is `ends` (of time.time), one step at least; returns what the guard said when
    it stopped the exact arm, or nothing. A loop that did its last step keeps a checkpoint only where that was asked.
    """
    settings, over = loop.settings, False
    while loop.step < steps and not over:
        try:
            line = loop.one_step()
        except NotExact as error:
            return str(error)
        store.append(line)
        tell(line)
        # The next step must fit too.
        over = time.time() + sum(line.seconds.values()) > ends
        last = loop.step == steps
        if settings.keep_checkpoint if last else over or loop.step % settings.checkpoint_every == 0:
            store.save(loop)
        elif last:
            store.drop()
    return ""
