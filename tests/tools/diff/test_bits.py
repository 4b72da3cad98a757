"""Comparison by raw bits, distance in ulps, the next value."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samebits.tools.diff.bits import bit_view, compare, equal, next_ulp, ordered, rows_differing, ulps

FLOATS = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
INTS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def every_bit_pattern(dtype: torch.dtype) -> torch.Tensor:
    """All values of a 1- or 2-byte dtype, a seeded sample and the extremes of a wider one."""
    ints = INTS[dtype.itemsize]
    low, high = torch.iinfo(ints).min, torch.iinfo(ints).max
    if dtype.itemsize <= 2:
        return torch.arange(low, high + 1, dtype=torch.int64).to(ints).view(dtype)
    sample = torch.randint(low, high, (4000,), dtype=ints, generator=torch.Generator().manual_seed(0))
    return torch.cat([sample, torch.tensor([0, 1, -1, low, low + 1, high, high - 1], dtype=ints)]).view(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_next_value_differs_and_stays_in_its_class(dtype: torch.dtype) -> None:
    values = every_bit_pattern(dtype)
    moved = next_ulp(values)
    old, new = values.double(), moved.double()
    assert bool((bit_view(values) != bit_view(moved)).all())
    # float8_e4m3fn has one NaN of each sign: its neighbour is the largest number.
    assert dtype == torch.float8_e4m3fn or bool((old.isnan() == new.isnan()).all())
    assert bool(new[old.isfinite()].isfinite().all())
    assert bool((ulps(values, moved) == 1).all())


@pytest.mark.parametrize("dtype", FLOATS)
def test_ordered_follows_the_values(dtype: torch.dtype) -> None:
    values = every_bit_pattern(dtype)
    values = values[~values.double().isnan()]
    values = values[ordered(values).argsort()]
    wide = values.double()
    assert bool((wide[1:] >= wide[:-1]).all())


def test_distance_is_zero_only_for_equal_bits() -> None:
    zeros = torch.tensor([0.0]), torch.tensor([-0.0])
    assert ulps(*zeros).tolist() == [1]
    assert ulps(torch.tensor([1.0]), torch.tensor([1.0 + 2**-23])).tolist() == [1]
    assert ulps(torch.tensor([-1.0]), torch.tensor([1.0])).tolist() == [2 * 0x3F800000 + 1]
    extremes = torch.tensor([math.nan, math.nan], dtype=torch.float64)
    assert ulps(extremes, extremes.neg()).tolist() == [2**63 - 1] * 2


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=6, unique=True), st.sampled_from(FLOATS[:4]))
def test_compare_counts_exactly_what_was_changed(places: list[tuple[int, int]], dtype: torch.dtype) -> None:
    a = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    b = a.clone()
    for row, column in places:
        b[row, column] = next_ulp(b[row, column])
    bits = compare(a, b)
    assert (bits.rows, bits.elements) == (4, 20)
    assert bits.elements_differing == len(places)
    assert bits.rows_differing == len({row for row, _ in places}) == int(rows_differing(a, b).sum())
    assert bits.max_ulps == (1 if places else 0)
    assert (bits.max_abs > 0) == bool(places)
    assert equal(a, b) == (not places)


def test_zeros_and_nans_that_compare_equal_as_values_are_counted_apart() -> None:
    nan = torch.tensor([math.nan])
    payload = (nan.view(torch.int32) ^ 1).view(torch.float32)
    a = torch.tensor([[0.0, math.nan, 1.0, math.nan]])
    b = torch.cat([torch.tensor([-0.0]), payload, torch.tensor([2.0, math.nan])]).view(1, 4)
    bits = compare(a, b)
    assert (bits.elements_differing, bits.value_equal_only, bits.max_abs) == (3, 2, 1.0)
    assert not equal(a, b)
    assert torch.equal(a[:, :1], b[:, :1])  # what torch.equal says of the zeros


def test_a_nan_against_a_number_is_infinitely_far() -> None:
    assert compare(torch.tensor([[math.nan]]), torch.tensor([[1.0]])).max_abs == math.inf


def test_large_tensors_are_compared_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    from samebits.tools.diff import bits as module

    a = torch.randn(50, 8)
    b = a.clone()
    b[3, 2], b[49, 7] = next_ulp(b[3, 2]), next_ulp(b[49, 7])
    whole = compare(a, b)
    monkeypatch.setitem(module._CHUNK, "cpu", 64)
    assert compare(a, b) == whole
    assert whole.elements_differing == 2


def test_integers_and_booleans_are_compared_too() -> None:
    a = torch.tensor([[1, 2, 3]])
    assert compare(a, next_ulp(a)).max_ulps == 1
    flags = torch.tensor([[True, False]])
    assert compare(flags, next_ulp(flags)).elements_differing == 2


@pytest.mark.parametrize("bytes_of", [1, 7, 64, 4097])
def test_equal_sees_every_byte_of_whatever_memory(bytes_of: int) -> None:
    a = torch.randint(0, 256, (3, bytes_of), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    strided = torch.empty(bytes_of, 3, dtype=torch.uint8).t().copy_(a)
    assert equal(a, strided)
    assert rows_differing(a, strided).tolist() == [False] * 3
    for row, column in {(0, 0), (1, bytes_of // 2), (2, bytes_of - 1)}:
        other = strided.clone()
        other[row, column] ^= 128
        assert not equal(a, other)
        assert rows_differing(a, other).tolist() == [row == at for at in range(3)]
    assert equal(a[:0], strided[:0])
    assert equal(a[0, 0], strided[0, 0])


def test_unequal_shapes_or_dtypes_are_no_comparison() -> None:
    with pytest.raises(ValueError, match="cannot compare"):
        compare(torch.zeros(2, 3), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="cannot compare"):
        equal(torch.zeros(2), torch.zeros(2, dtype=torch.float16))
    with pytest.raises(ValueError, match="rows must be"):
        compare(torch.zeros(2), torch.zeros(2))


def test_an_infinite_difference_survives_json() -> None:
    bits = compare(torch.tensor([[math.nan]]), torch.tensor([[1.0]]))
    assert type(bits).model_validate_json(bits.model_dump_json()) == bits
