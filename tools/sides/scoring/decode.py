"""Token by token through a PyTorch side's own key-value cache: how such a side serves as rollout side.

Legend: L fed tokens, V vocabulary, N sampled tokens in all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from samebits.tools.capture.rows import PassRows
from samebits.tools.sides.protocol import RolloutData, Scores, Sequence
from samebits.tools.sides.scoring.logprob import GREEDY_BELOW, Processing, keep_top
from samebits.tools.sides.vllm.workload import prompts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samebits.tools.schema.experiment import Workload

    Choose = Callable[[int, torch.Tensor], int]

SEED_STRIDE = 100_003
"""Each sequence draws from its own seed, so that company changes nothing."""


class Decoder(Protocol):
    """What a side needs to be fed token by token."""

    device: torch.device
    recomputes: bool
    """There is no cache: every step is given all tokens again."""
    vocabulary: int | None
    _rows: PassRows | None

    def check(self, data: RolloutData) -> None: ...

    def next_logits(self, ids_1L: torch.Tensor, positions_1L: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]: ...

    def logprobs(self, logits_RV: torch.Tensor, targets_R: torch.Tensor, processing: Processing) -> torch.Tensor: ...


def _run(
    side: Decoder, index: int, prompt: list[int], count: int, choose: Choose, processing: Processing
) -> tuple[list[int], list[torch.Tensor]]:
    """Feed a prompt, then the chosen tokens but the last; returns the choices and their logprobs [1]."""
    cache: Any = None
    fed, start = list(prompt), 0
    chosen: list[int] = []
    logprobs = []
    for k in range(count):
        ids_1L = torch.tensor([fed[start:]], device=side.device)
        positions_1L = torch.arange(start, len(fed), device=side.device)[None]
        length = ids_1L.shape[1]
        side._rows = PassRows(
            torch.full((length,), index, dtype=torch.int32),
            positions_1L[0].to("cpu", torch.int32),
            (1, length),
            torch.tensor([length - 1]),
        )
        logits_1V, cache = side.next_logits(ids_1L, positions_1L, cache)
        start = 0 if side.recomputes else len(fed)
        chosen.append(choose(k, logits_1V))
        logprobs.append(side.logprobs(logits_1V, torch.tensor(chosen[-1:], device=side.device), processing))
        fed.append(chosen[-1])
    side._rows = None
    return chosen, logprobs


def generate(side: Decoder, workload: Workload, folder: Path, special: set[int], mode: str) -> RolloutData:
    """Sample a rollout.

    Args:
        special: token ids left out of random prompts.
        mode: "raw" or "processed" logprobs.
    """
    assert side.vocabulary is not None
    asked = prompts(workload, folder, side.vocabulary, special)
    none_N = torch.empty(0)
    data = RolloutData(
        [Sequence(prompt, [0] * workload.new_tokens) for prompt in asked],
        none_N,
        none_N,
        workload.temperature,
        workload.top_p,
        workload.top_k,
        mode,
    )
    side.check(data)
    processing = Processing.of(data)
    sequences, logprobs = [], []
    with torch.no_grad():
        for i, prompt in enumerate(asked):
            choose = _sampler(workload, torch.Generator().manual_seed(workload.seed * SEED_STRIDE + i))
            sampled, values = _run(side, i, prompt, workload.new_tokens, choose, processing)
            sequences.append(Sequence(prompt, sampled))
            logprobs += values
    data.sequences = sequences
    data.logprob_N = torch.cat(logprobs).float().cpu()
    data.valid_N = torch.ones(len(data.logprob_N), dtype=torch.bool)
    return data


def _sampler(workload: Workload, generator: torch.Generator) -> Choose:
    def choose(_: int, logits_1V: torch.Tensor) -> int:
        if workload.temperature < GREEDY_BELOW:
            return int(logits_1V.argmax())
        kept_1V = keep_top(logits_1V.float() / workload.temperature, workload.top_k, workload.top_p)
        return int(torch.multinomial(kept_1V.softmax(-1).cpu(), 1, generator=generator))

    return choose


def score_decode(side: Decoder, data: RolloutData) -> Scores:
    """Teacher-forced: the rollout's own tokens are fed one by one, one sequence at a time."""
    side.check(data)
    processing = Processing.of(data)
    logprobs: list[torch.Tensor] = []
    with torch.no_grad():
        for i, sequence in enumerate(data.sequences):
            logprobs += _run(side, i, sequence.prompt, len(sequence.sampled), _forced(sequence.sampled), processing)[1]
    logprob_N = torch.cat(logprobs).float().cpu() if logprobs else torch.empty(0)
    facts: dict[str, Any] = {"largest_batch": 1, "passes": len(logprobs), "path": "decode"}
    return Scores(logprob_N, torch.ones(len(logprob_N), dtype=torch.bool), facts)


def _forced(sampled: list[int]) -> Choose:
    return lambda k, _: sampled[k]
