"""What fits an operator in one layer is tried first in the others, and only trusted where it gives every bit."""

from __future__ import annotations

import torch

from samebits.tools.diff.causes.linear import LINEAR
from samebits.tools.diff.causes.name import name_cause
from samebits.tools.diff.causes.norm import NORM
from samebits.tools.diff.causes.observation import Arithmetic, Observation
from samebits.tools.diff.causes.search import search


def norm(seed: int, **steps: str) -> Observation:
    """A norm with a residual, the rollout's with these steps done another way."""
    make = torch.Generator().manual_seed(seed)
    inputs = {
        "x": torch.randn(64, 256, generator=make).bfloat16(),
        "residual": torch.randn(64, 256, generator=make).bfloat16(),
        "weight": (1 + 0.1 * torch.randn(256, generator=make)).bfloat16(),
    }
    return planted(NORM, inputs, steps)


def planted(kind: Arithmetic, inputs: dict[str, torch.Tensor], steps: dict[str, str]) -> Observation:
    empty = torch.zeros(1, dtype=torch.bfloat16)
    blank = Observation(kind.kind, inputs, empty, empty, {})
    plain = {one.name: one.options[0].name for one in kind.settings(blank)}
    return Observation(kind.kind, inputs, kind.run(blank, {**plain, **steps}), kind.run(blank, plain), {})


def test_the_arithmetics_of_the_first_layer_are_all_that_is_tried_on_the_next() -> None:
    first = search(norm(1, sum="unrounded"), NORM)
    again = search(norm(2, sum="unrounded"), NORM, first)
    distinct = {tuple(sorted(pick.items())) for pick in (*first.rollout, *first.trainer)}
    assert again.tried == len(distinct) < first.tried
    assert again.rollout
    assert again.trainer
    assert name_cause(norm(2, sum="unrounded"), first).cause.name == name_cause(norm(2, sum="unrounded")).cause.name


def test_arithmetics_that_do_not_fit_here_give_way_to_the_whole_search() -> None:
    first = search(norm(1, sum="unrounded"), NORM)
    seen = norm(2, weight="before")
    assert search(seen, NORM, first) == search(seen, NORM)
    assert name_cause(seen, first).cause == name_cause(seen).cause


def test_arithmetics_of_another_kind_are_passed_over() -> None:
    first = search(norm(1, sum="unrounded"), NORM)
    make = torch.Generator().manual_seed(3)
    inputs = {"x": torch.randn(16, 64, generator=make), "weight": torch.randn(32, 64, generator=make)}
    seen = planted(LINEAR, inputs, {})
    assert search(seen, LINEAR, first) == search(seen, LINEAR)
