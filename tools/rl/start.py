"""The model that both arms begin with: random or given, then trained on right answers for a short time."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.rl.checkpoint import check_disk
from samebits.tools.rl.policy import Policy
from samebits.tools.rl.task import VOCABULARY, Sort
from samebits.tools.schema.errors import UserError
from samebits.tools.sides.protocol import RolloutData, Sequence
from samebits.tools.sides.transformers.shapes import QWEN3

if TYPE_CHECKING:
    from pathlib import Path

    from samebits.tools.job.job import Job
    from samebits.tools.schema.experiment import Experiment, Rl

SHAPES: dict[str, dict[str, Any]] = {"tiny": {"vocab_size": 64}} | {name: QWEN3[name] for name in ("0.6b", "1.7b")}
"""Sizes on top of those of a tiny model. The small vocabulary leaves the few tokens of the task a share of random
choices that supervised training can move in a minute."""
BATCH = 64
"""Right answers per supervised update."""


def end_token_of(config: Any) -> int:
    """Of a transformers config.

    Raises:
        UserError: it names none, or one that the task uses.
    """
    text = config.get_text_config()
    found = text.eos_token_id[0] if isinstance(text.eos_token_id, list) else text.eos_token_id
    if found is None or 2 <= found < VOCABULARY or text.vocab_size < VOCABULARY:
        raise UserError(
            f"eos_token_id = {found}, vocab_size = {text.vocab_size}",
            f"the task needs token ids 2 to {VOCABULARY - 1} and another one for the end",
            "use another model, or leave [rollout] model empty",
        )
    return int(found)


def task_of(settings: Rl, config: Any) -> Sort:
    """The task of an experiment on a model.

    Raises:
        UserError: digits that make no prompt, a model without an end token.
    """
    fewest, most = settings.digits
    if not 1 <= fewest <= most:
        raise UserError(f"[rl] digits = {[fewest, most]}", "needs 1 <= fewest <= most", "correct it in samebits.toml")
    return Sort(fewest, most, end_token_of(config))


def make(experiment: Experiment, folder: Path, device: str, job: Job, *, limited: bool = False) -> float:
    """Write the model that the loop starts from to `folder`; returns the last supervised loss (NaN: none was done).

    Args:
        limited: the loops may end early, with a checkpoint.

    Raises:
        UserError: a model that cannot be loaded or that the task does not fit; a disk that what follows does not fit.
    """
    from samebits.tools.sides.transformers.tiny import write_tiny

    settings, source = experiment.rl, experiment.rollout.model
    random_model = folder.with_name("random")
    if not source:
        sizes, seed = SHAPES[settings.shape], experiment.workload.seed
        with torch.device(device):
            write_tiny(random_model, settings.family, experiment.rollout.dtype, seed, **sizes)
        source = str(random_model)
    learner = settings.model_copy(update={"rate": settings.warmup_rate})
    trainer = experiment.trainer.model_copy(update={"layout": "packed", "micro_batch": BATCH, "kernels": "none"})
    policy = Policy.load(_path(source), trainer, device, learner)
    check_disk(folder.parent, policy.count(), settings, limited, models=1)
    task = task_of(settings, policy.side.module.config)
    loss = float("nan")
    for step in range(settings.warmup_steps):
        loss = supervised_step(policy, task, experiment.workload.seed, step)
        job.emit("warm-up", f"supervised loss {loss:.3f} per token", step + 1, settings.warmup_steps)
    model: Any = policy.side.module
    model.save_pretrained(folder)
    shutil.rmtree(random_model, ignore_errors=True)
    return loss


def supervised_step(policy: Policy, task: Sort, seed: int, step: int) -> float:
    """One update on right answers; returns the mean loss per token, nats."""
    generator = random.Random(f"warm-up/{seed}/{step}")
    prompts = [task.prompt(generator) for _ in range(BATCH)]
    data = right_answers(task, prompts)
    count = len(data.logprob_N)
    loss = policy.gradient(data, torch.full((count,), 1.0 / count))
    policy.update(f"supervised update {step + 1}", "warmup_rate")
    return loss


def right_answers(task: Sort, prompts: list[list[int]]) -> RolloutData:
    """As if they had been sampled."""
    sequences = [Sequence(prompt, task.answer(prompt)) for prompt in prompts]
    count = sum(len(sequence.sampled) for sequence in sequences)
    return RolloutData(sequences, torch.zeros(count), torch.ones(count, dtype=torch.bool))


def _path(text: str) -> Path:
    from pathlib import Path

    return Path(text)
