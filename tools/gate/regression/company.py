"""The same sequences among other neighbours: batch content, not only batch size.

Legend: N sampled tokens in all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from samebits.tools.sides.protocol import RolloutData, Scores, Sequence

TAIL = 4
"""Sampled tokens of a neighbour."""


@dataclass(slots=True, frozen=True)
class Company:
    """Every second sequence of a rollout, in the same place, with made-up neighbours in between."""

    words: str
    data: RolloutData
    """What is scored; tokens of neighbours are masked."""
    targets: tuple[int, ...]
    """Sequences of the original rollout that stayed."""

    def back(self, scores: Scores, original: RolloutData) -> Scores:
        """Scores of the targets in the original's order."""
        starts = _starts(original.sequences)
        own = _starts(self.data.sequences)
        logprob_N = torch.zeros_like(original.logprob_N)
        scored_N = torch.zeros_like(original.valid_N)
        for i in self.targets:
            there, here = slice(starts[i], starts[i + 1]), slice(own[i], own[i + 1])
            logprob_N[there] = scores.logprob_N[here]
            scored_N[there] = scores.scored_N[here]
        return Scores(logprob_N, scored_N, scores.facts)

    def due(self, original: RolloutData) -> int:
        """Valid tokens of the targets."""
        starts = _starts(original.sequences)
        return sum(int(original.valid_N[starts[i] : starts[i + 1]].sum()) for i in self.targets)


def companies(data: RolloutData) -> list[Company]:
    """Short, long and extreme neighbours; empty when there is no place for one."""
    if len(data.sequences) < 2:
        return []
    longest = max((sequence.prompt for sequence in data.sequences), key=len)
    token = longest[-1]
    kinds = (
        ("short neighbours (one token)", [token]),
        (f"long neighbours ({len(longest)} tokens)", longest[::-1]),
        (f"extreme neighbours (one token {len(longest)} times)", [token] * len(longest)),
    )
    return [_with(data, words, prompt) for words, prompt in kinds]


def _with(data: RolloutData, words: str, prompt: list[int]) -> Company:
    sequences, logprobs, valid = [], [], []
    starts = _starts(data.sequences)
    for i, sequence in enumerate(data.sequences):
        if i % 2 == 0:
            sequences.append(sequence)
            logprobs.append(data.logprob_N[starts[i] : starts[i + 1]])
            valid.append(data.valid_N[starts[i] : starts[i + 1]])
        else:
            sequences.append(Sequence(prompt, prompt[-1:] * TAIL))
            logprobs.append(torch.zeros(TAIL))
            valid.append(torch.zeros(TAIL, dtype=torch.bool))
    made = RolloutData(
        sequences,
        torch.cat(logprobs),
        torch.cat(valid),
        data.temperature,
        data.top_p,
        data.top_k,
        data.logprobs,
        data.weight_version,
    )
    return Company(words, made, tuple(range(0, len(data.sequences), 2)))


def _starts(sequences: list[Sequence]) -> list[int]:
    starts = [0]
    for sequence in sequences:
        starts.append(starts[-1] + len(sequence.sampled))
    return starts
