"""Figures of a gap."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samebits.tools.measure import gap
from samebits.tools.measure.answer import figures
from samebits.tools.sides.protocol import Sequence


def every(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def yes(count: int) -> torch.Tensor:
    return torch.ones(count, dtype=torch.bool)


def test_figures_are_those_of_the_definition_in_float64() -> None:
    rollout, trainer = every(-1.0, -2.5, -3.0), every(-1.0, -2.0, -3.25)
    found = gap.stats(rollout, trainer, yes(3))
    diffs = [0.0, -0.5, 0.25]
    mean = sum(diffs) / 3
    assert (found.tokens, found.nonzero, found.nonfinite, found.max) == (3, 2, 0, 0.5)
    assert found.mean == pytest.approx(mean, abs=1e-15)
    assert found.std == pytest.approx(math.sqrt(sum((d - mean) ** 2 for d in diffs) / 3), abs=1e-15)
    assert found.k3 == pytest.approx(sum(math.expm1(-d) + d for d in diffs) / 3, abs=1e-15)
    assert not found.exact


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(-20, 0, width=32), st.floats(-20, 0, width=32), st.booleans()), min_size=1))
def test_masked_tokens_count_in_no_figure(rows: list[tuple[float, float, bool]]) -> None:
    """The figures by indexing, in Python's floats."""
    found = gap.stats(every(*(r[0] for r in rows)), every(*(r[1] for r in rows)), torch.tensor([r[2] for r in rows]))
    diffs = [rollout - trainer for rollout, trainer, valid in rows if valid]
    assert found.tokens == len(diffs)
    if not diffs:
        assert all(math.isnan(value) for value in (found.max, found.mean, found.std, found.k3))
        return
    mean = math.fsum(diffs) / len(diffs)
    assert found.max == max(abs(d) for d in diffs)
    assert found.mean == pytest.approx(mean, rel=1e-9, abs=1e-12)
    assert found.std == pytest.approx(math.sqrt(math.fsum((d - mean) ** 2 for d in diffs) / len(diffs)), abs=1e-7)
    k3 = math.fsum(math.expm1(-d) + d for d in diffs) / len(diffs)
    assert found.k3 == pytest.approx(k3, rel=1e-9, abs=1e-12)


def test_equal_bits_are_exact_and_one_ulp_is_not() -> None:
    rollout = every(-1.0, -2.0)
    assert gap.stats(rollout, rollout.clone(), yes(2)).exact
    moved = rollout.clone()
    moved[1] = torch.nextafter(moved[1], torch.tensor(0.0))
    found = gap.stats(rollout, moved, yes(2))
    assert (found.nonzero, found.exact) == (1, False)


def test_zero_and_minus_zero_have_other_bits() -> None:
    found = gap.stats(every(0.0), every(-0.0), yes(1))
    assert (found.nonzero, found.max, found.exact) == (1, 0.0, False)
    assert int(gap.ulps(every(0.0), every(-0.0))) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_equal_values_that_are_not_finite_are_never_exact(value: float) -> None:
    found = gap.stats(every(-1.0, value), every(-1.0, value), yes(2))
    assert (found.nonzero, found.nonfinite, found.exact) == (0, 1, False)
    assert found.max == 0.0


def test_masked_tokens_do_not_count_and_nothing_valid_is_not_exact() -> None:
    rollout, trainer = every(-1.0, -9.0), every(-1.0, math.nan)
    assert gap.stats(rollout, trainer, torch.tensor([True, False])).exact
    nothing = gap.stats(rollout, rollout, torch.zeros(2, dtype=torch.bool))
    assert not nothing.exact
    assert math.isnan(nothing.max)


def test_with_no_finite_token_no_figure_is_zero_and_the_file_keeps_it_so() -> None:
    found = gap.stats(every(-1.0, -2.0), every(math.nan, -math.inf), yes(2))
    assert (found.nonzero, found.nonfinite, found.exact) == (2, 2, False)
    assert all(math.isnan(value) for value in (found.max, found.mean, found.std, found.k3))
    again = type(found).model_validate_json(found.model_dump_json())
    assert math.isnan(again.max)
    assert not again.exact
    assert figures(found) == "2 of 2 tokens differ, none finite on both sides, 2 not finite"
    (row,) = gap.per_sequence([Sequence([5], [7, 8])], every(-1.0, -2.0), every(math.nan, -math.inf), yes(2))
    assert math.isnan(row.max)


def test_ulps_count_across_the_sign_and_exponents() -> None:
    one = every(1.0)
    assert int(gap.ulps(one, torch.nextafter(one, every(2.0)))) == 1
    assert int(gap.ulps(every(1.0), every(2.0))) == 1 << 23
    tiny = torch.nextafter(every(0.0), every(1.0))
    assert int(gap.ulps(tiny, -tiny)) == 3


def test_sequences_and_worst_tokens_are_named_by_absolute_position() -> None:
    sequences = [Sequence([5, 6], [7, 8, 9]), Sequence([5], [4])]
    trainer = every(-1.0, -2.0, -3.0, -4.0)
    rollout = every(-1.0, -2.5, -3.25, -4.0)
    valid = torch.tensor([True, True, True, True])
    rows = gap.per_sequence(sequences, rollout, trainer, valid)
    assert [(row.nonzero, row.first_position, row.max) for row in rows] == [(2, 3, 0.5), (0, None, 0.0)]
    worst = gap.worst_tokens(sequences, rollout, trainer, valid)
    assert [(token.position, token.token) for token in worst] == [(3, 8), (4, 9)]
    assert worst[0].around[1:4] == (0.0, -0.5, -0.25)
    assert math.isnan(worst[0].around[0])


def test_a_value_that_is_not_finite_is_the_worst_token() -> None:
    sequences = [Sequence([5], [7, 8])]
    worst = gap.worst_tokens(sequences, every(-1.0, -2.5), every(math.nan, -2.0), yes(2))
    assert [(token.position, token.ulps >= 0) for token in worst] == [(1, False), (2, True)]
    assert worst[0].ulps == -1
