"""The quick filter before two tensors are told to hold one quantity loses none that the exact distance would take."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from samebits.tools.align import pairs
from samebits.tools.align.pairs import SAME_QUANTITY, distance


def samples(tensors: list[torch.Tensor]) -> Any:
    return cast("Any", [(None, tensor) for tensor in tensors])


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_the_exact_distance_takes_passes_the_filter(scale: float, dtype: torch.dtype) -> None:
    make = torch.Generator().manual_seed(3)
    own = [scale * torch.randn(8, 96, generator=make) for _ in range(60)]
    near = [
        x * (1 + step * torch.randn(x.shape, generator=make)) for x in own[:20] for step in (0.0, 1e-3, 0.05, 0.098)
    ]
    taps, candidates = [x.to(dtype) for x in near], [x.to(dtype) for x in own]
    found = pairs._near(samples(taps), samples(candidates))
    exact = [[i for i, x in enumerate(candidates) if distance(x, tap) < SAME_QUANTITY] for tap in taps]
    assert sum(len(row) for row in exact) >= 60
    assert all(set(row) <= set(through) for row, through in zip(exact, found, strict=True))
    # Control: it does filter.
    assert sum(len(row) for row in found) < 2 * len(taps)


def test_what_is_not_a_number_and_zeros_go_on_to_the_exact_distance() -> None:
    bad, zero = torch.full((2, 8), float("nan")), torch.zeros(2, 8)
    assert pairs._near(samples([bad, zero]), samples([bad, zero])) == [[0, 1], [0, 1]]
