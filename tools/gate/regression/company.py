"""The same sequences in other places and among other neighbours: batch content, not only batch size.

Legend: N sampled tokens in all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from samebits.tools.sides.protocol import RolloutData, Scores, Sequence

if TYPE_CHECKING:
    from collections.abc import Iterable

TAIL = 4
"""Sampled tokens of a long or extreme neighbour."""
FILLER = 5
"""Prompt tokens of a neighbour that only fills a batch."""


@dataclass(slots=True, frozen=True)
class Company:
    """Sequences of a rollout in places of their own, with made-up ones between them."""

    words: str
    data: RolloutData
    """What is scored; tokens of made-up sequences are masked."""
    places: tuple[int | None, ...]
    """Which sequence of the original rollout stands in each place; None: a made-up one."""

    def back(self, scores: Scores, original: RolloutData) -> Scores:
        """Scores of the original's sequences in its own order."""
        starts, own = _starts(original.sequences), _starts(self.data.sequences)
        logprob_N = torch.zeros_like(original.logprob_N)
        scored_N = torch.zeros_like(original.valid_N)
        for place, i in enumerate(self.places):
            if i is not None:
                there, here = slice(starts[i], starts[i + 1]), slice(own[place], own[place + 1])
                logprob_N[there] = scores.logprob_N[here]
                scored_N[there] = scores.scored_N[here]
        return Scores(logprob_N, scored_N, scores.facts)

    def due(self, original: RolloutData) -> int:
        """Valid tokens of the original's sequences that stand here."""
        starts = _starts(original.sequences)
        return sum(int(original.valid_N[starts[i] : starts[i + 1]].sum()) for i in self.places if i is not None)


def arranged(data: RolloutData, words: str, order: Iterable[int | Sequence]) -> Company:
    """A company in this order: numbers are sequences of the rollout, the others are made up."""
    starts = _starts(data.sequences)
    sequences: list[Sequence] = []
    logprobs, valid = [], []
    places: list[int | None] = []
    for one in order:
        if isinstance(one, int):
            sequences.append(data.sequences[one])
            logprobs.append(data.logprob_N[starts[one] : starts[one + 1]])
            valid.append(data.valid_N[starts[one] : starts[one + 1]])
            places.append(one)
        else:
            sequences.append(one)
            logprobs.append(torch.zeros(len(one.sampled)))
            valid.append(torch.zeros(len(one.sampled), dtype=torch.bool))
            places.append(None)
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
    return Company(words, made, tuple(places))


def companies(data: RolloutData, least: int = 1) -> list[Company]:
    """Every second sequence in its place, short, long and extreme neighbours in between; empty when there is no place
    for one. Where that leaves fewer than `least` valid tokens: every sequence, with a neighbour behind each.
    """
    count = len(data.sequences)
    if count < 2:
        return []
    longest = max((sequence.prompt for sequence in data.sequences), key=len)
    token = longest[-1]
    kinds = (
        ("short neighbours (one token)", [token]),
        (f"long neighbours ({len(longest)} tokens)", longest[::-1]),
        (f"extreme neighbours (one token {len(longest)} times)", [token] * len(longest)),
    )
    made = []
    for words, prompt in kinds:
        other = Sequence(prompt, prompt[-1:] * TAIL)
        one = arranged(data, f"every second sequence among {words}", (i if i % 2 == 0 else other for i in range(count)))
        if one.due(data) < least:
            order = (place for i in range(count) for place in (i, other))
            one = arranged(data, f"every sequence among {words}", order)
        made.append(one)
    return made


def filled(data: RolloutData, size: int) -> Company:
    """All sequences spread evenly over a batch of `size`, made-up short ones in the other places; they decode to the
    end.
    """
    count = len(data.sequences)
    assert size > count
    last = max(len(sequence.sampled) for sequence in data.sequences)
    tokens = max((sequence.tokens for sequence in data.sequences), key=len) * (FILLER + last)
    own = {(i * size) // count: i for i in range(count)}
    order = (
        own[place]
        if place in own
        else Sequence(tokens[place % 7 : place % 7 + FILLER], tokens[place % 5 : place % 5 + last])
        for place in range(size)
    )
    return arranged(data, f"all in flight against the same in a batch of {size}", order)


def turned(data: RolloutData, by: int) -> Company:
    """The sequences with the first `by` of them behind the others."""
    count = len(data.sequences)
    return arranged(data, f"all in flight against each {by} places earlier", ((i + by) % count for i in range(count)))


def _starts(sequences: list[Sequence]) -> list[int]:
    starts = [0]
    for sequence in sequences:
        starts.append(starts[-1] + len(sequence.sampled))
    return starts
