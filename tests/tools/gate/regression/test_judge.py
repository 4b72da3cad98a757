"""Outcome and verdict: what other gates let through (NaN, nothing compared, thresholds, probabilities) is red here."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from samebits.tools.gate.regression import judge
from samebits.tools.gate.regression.company import companies
from samebits.tools.gate.regression.judge import Tried
from samebits.tools.schema.artifacts.regression import AxisRow
from samebits.tools.sides.protocol import RolloutData, Scores, Sequence

COUNT = 100
ALL = torch.ones(COUNT, dtype=torch.bool)
PLAIN = -torch.arange(1, COUNT + 1, dtype=torch.float32) / 7


def moved(ulps: int = 1, tokens: int = 1) -> torch.Tensor:
    other = PLAIN.clone()
    other.view(torch.int32)[:tokens] += ulps
    return other


def tried(*others: torch.Tensor, control: torch.Tensor | None = None, used: torch.Tensor = ALL) -> Tried:
    ways = [judge.compared("one way", PLAIN, other, used, int(ALL.sum())) for other in others]
    seen = judge.control("one element", PLAIN, moved() if control is None else control, ALL)
    return Tried(compared=ways, control=seen)


def row(one: Tried, *, required: bool = False) -> AxisRow:
    return judge.row("repeat", one, 64, required)


GOOD = judge.comparison_control(PLAIN, ALL)


def test_equal_bits_with_a_control_that_failed_are_exact() -> None:
    found = row(tried(PLAIN, PLAIN.clone()))
    assert found.outcome.status == "exact"
    assert judge.verdict((found,), GOOD).kind == "green"


def test_a_difference_below_every_threshold_and_invisible_as_a_probability_differs() -> None:
    tiny = PLAIN.clone()
    tiny.view(torch.int32)[-1] += 1
    assert float((tiny - PLAIN).abs().max()) < 2e-6
    assert torch.equal(tiny.exp().bfloat16(), PLAIN.exp().bfloat16())
    found = row(tried(PLAIN, tiny))
    assert found.outcome.status == "differs"
    assert found.outcome.stats.nonzero == 1
    assert judge.verdict((found,), GOOD).kind == "red"


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_what_is_not_finite_on_both_sides_is_no_equality(value: float) -> None:
    both = PLAIN.clone()
    both[3] = value
    one = Tried(compared=[judge.compared("one way", both, both.clone(), ALL, COUNT)], control=GOOD)
    assert row(one).outcome.status == "differs"


def test_the_other_nan_payload_and_the_other_zero_differ() -> None:
    a, b = torch.tensor([0x7FC00000, 0]).int().view(torch.float32), torch.tensor([0x7FC00001, -(2**31)]).int()
    assert judge.compared("", a, b.view(torch.float32), torch.ones(2, dtype=torch.bool), 2).stats.nonzero == 2


def test_nothing_compared_is_not_run_and_fails_where_it_is_required() -> None:
    nothing = Tried(skipped=["no prefill was cut: chunked_prefills is 0"], control=GOOD)
    assert row(nothing).outcome.status == "not_run"
    assert not row(nothing).red
    assert judge.verdict((row(nothing),), GOOD).kind == "unjudged"
    exact = row(tried(PLAIN))
    assert judge.verdict((row(nothing), exact), GOOD).kind == "green"
    assert judge.verdict((row(nothing, required=True), exact), GOOD).kind == "unjudged"


def test_a_way_that_lost_tokens_is_too_few_even_when_the_rest_is_equal() -> None:
    used = ALL.clone()
    used[0] = False
    found = row(tried(PLAIN, used=used))
    assert (found.outcome.status, found.outcome.tokens, found.outcome.needed) == ("too_few", 99, 100)
    assert judge.row("repeat", tried(PLAIN), 101, False).outcome.status == "too_few"
    assert judge.verdict((found,), GOOD).kind == "unjudged"


def test_a_control_that_does_not_fail_makes_its_axis_vacuous() -> None:
    found = row(tried(PLAIN, control=PLAIN.clone()))
    assert found.outcome.status == "vacuous"
    assert judge.verdict((found, row(tried(PLAIN))), GOOD).kind == "unjudged"


def test_without_a_control_nothing_is_proved_and_a_difference_is_still_seen() -> None:
    one = tried(PLAIN)
    one.control, one.no_control = None, "a compiled engine runs no hooks"
    assert row(one).outcome.status == "not_run"
    other = tried(moved())
    other.control = None
    assert row(other).outcome.status == "differs"


def test_a_comparison_that_misses_a_flipped_bit_judges_nothing() -> None:
    blind = judge.control("a bit", PLAIN, PLAIN, ALL)
    assert judge.verdict((row(tried(PLAIN)),), blind).kind == "unjudged"


def test_a_difference_is_red_whatever_else_is_wrong() -> None:
    verdict = judge.verdict((row(tried(moved())), row(tried(PLAIN, control=PLAIN.clone()))), GOOD)
    assert verdict.kind == "red"
    assert len(verdict.reasons) == 2


@given(st.integers(0, 2**20))
def test_the_histogram_counts_each_token_in_the_bucket_of_its_distance(ulps: int) -> None:
    counts = judge.histogram(PLAIN, moved(ulps), ALL)
    assert sum(counts) == COUNT
    if ulps:
        assert (counts[0], counts[-1]) == (COUNT - 1, 1)
        assert 2 ** (len(counts) - 2) <= ulps < 2 ** (len(counts) - 1)


def test_neighbours_change_and_targets_stay_in_their_places() -> None:
    sequences = [Sequence(list(range(1, n + 2)), [n, n + 1]) for n in range(5)]
    data = RolloutData(sequences, torch.arange(10.0), torch.ones(10, dtype=torch.bool))
    made = companies(data)
    assert [len(one.data.sequences[1].prompt) for one in made] == [1, 5, 5]
    for one in made:
        assert [one.data.sequences[i] for i in (0, 2, 4)] == [sequences[i] for i in (0, 2, 4)]
        assert int(one.data.valid_N.sum()) == one.due(data) == 6
        back = one.back(Scores(one.data.logprob_N, torch.ones_like(one.data.valid_N)), data)
        assert back.logprob_N[back.scored_N].tolist() == [0, 1, 4, 5, 8, 9]
        assert back.scored_N.tolist() == [True, True, False, False] * 2 + [True, True]
    assert [one.due(data) for one in companies(data, 6)] == [6] * 3
    whole = companies(data, 7)
    assert [one.words.split(" among ")[0] for one in whole] == ["every sequence"] * 3
    for one in whole:
        assert one.data.sequences[::2] == sequences
        back = one.back(Scores(one.data.logprob_N, torch.ones_like(one.data.valid_N)), data)
        assert (one.due(data), back.logprob_N.tolist(), bool(back.scored_N.all())) == (10, list(range(10)), True)
    assert companies(RolloutData(sequences[:1], torch.zeros(2), torch.ones(2, dtype=torch.bool))) == []
