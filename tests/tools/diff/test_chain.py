"""How many operators are right in each pass of the proof."""

from __future__ import annotations

import itertools

import pytest
import torch

from samebits.tools.diff.chain import Link, around, effect, schedule
from samebits.tools.measure.gap import stats


def link(value: float) -> Link:
    logprob_N = torch.full((3,), value)
    return Link(logprob_N, stats(logprob_N, logprob_N, torch.ones(3, dtype=torch.bool)), "somewhere", 1)


@pytest.mark.parametrize(("count", "limit"), [(0, 4), (3, 4), (4, 4), (30, 12), (170, 20), (9, 1)])
def test_the_schedule_starts_at_none_ends_at_all_and_never_goes_back(count: int, limit: int) -> None:
    counts = schedule(count, limit)
    assert counts[0] == 0
    assert counts[-1] == count
    assert counts == sorted(set(counts))


def test_up_to_the_limit_each_operator_has_a_pass_of_its_own() -> None:
    assert schedule(4, 4) == [0, 1, 2, 3, 4]


def test_beyond_the_limit_several_go_together() -> None:
    counts = schedule(100, 20)
    assert len(counts) <= 21
    assert counts[:13] == list(range(13))
    assert max(b - a for a, b in itertools.pairwise(counts)) > 1


def test_an_operator_is_between_the_passes_around_it() -> None:
    links = {0: link(0.0), 1: link(1.0), 5: link(2.0)}
    assert around(links, 0)[2] == 1
    before, after, together = around(links, 3)
    assert (before, after, together) == (links[1], links[5], 4)
    assert effect(before, after, torch.ones(3, dtype=torch.bool)).max == 1.0
