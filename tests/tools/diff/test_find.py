"""What a suspect is called, and when two sets of rows are one quantity turned."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from samebits.tools.diff.find import SAME_LENGTH, Suspect, of_one_length
from samebits.tools.schema.artifacts.divergence import Bits, Pair
from samebits.tools.schema.sites import Site

NONE = Bits(rows=1, rows_differing=1, elements=1, elements_differing=1, max_ulps=1, max_abs=0.0, value_equal_only=0)
ROUTER = ("aten.mm.default", "aten._softmax.default", "aten.topk.default")


def suspect(by: Literal["weights", "place"], operators: tuple[str, ...], port: str = "out0") -> Suspect:
    site = Site(module="model.layers.0.mlp.gate", port=port)
    return Suspect(
        Pair(rollout=site, trainer=site, columns=None, wider="neither", by=by), NONE, site.module, True, operators
    )


def test_the_logits_of_a_router_are_a_linear_and_its_choice_is_not() -> None:
    assert suspect("weights", ROUTER).kind == "linear"
    assert suspect("place", ROUTER, "out1").kind == "router"
    assert suspect("weights", ("aten.bmm.default", "aten._softmax.default")).kind == "attention"


def turned_by(angle: float) -> torch.Tensor:
    x_RC = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    a_RE, b_RE = x_RC.chunk(2, 1)
    cos, sin = torch.tensor(angle).cos(), torch.tensor(angle).sin()
    return torch.cat([a_RE * cos - b_RE * sin, b_RE * cos + a_RE * sin], 1)


def test_a_turned_vector_is_the_same_quantity_the_nearer_the_surer() -> None:
    near, far = (of_one_length(turned_by(0.0), turned_by(angle)) for angle in (0.1, 0.9))
    assert near == pytest.approx(0.995, abs=1e-3)
    assert 0 < far < near


@pytest.mark.parametrize("factor", [1 + 2 * SAME_LENGTH, 0.125])
def test_another_length_is_another_quantity(factor: float) -> None:
    """A query that was scaled before its attention must not take the rollout's unscaled one."""
    assert of_one_length(turned_by(0.0), turned_by(0.1) * factor) == 0.0
