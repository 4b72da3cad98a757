"""The time leg: its spread is told, and where the noise reaches over the claim there is no verdict."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from samebits.tools.gate.candidate import legs_graph
from samebits.tools.gate.candidate.legs_graph import Ratio
from samebits.tools.gate.candidate.plan import CannotRunError, RedError


def plan(claim: float | None) -> Any:
    """What the leg reads, with one setting; times are made up below."""
    return SimpleNamespace(
        interpreted=False,
        is_its_contract=False,
        device=SimpleNamespace(type="cpu"),
        settings=lambda: [((8,), None, "eight")],
        draw=lambda *_: {},
        call=lambda *_: [],
        expected=lambda _: [],
        operator=SimpleNamespace(replaced=None),
        candidate=SimpleNamespace(speed=claim),
    )


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(old: list[float], ours: list[float], claim: float | None) -> Any:
        monkeypatch.setattr(legs_graph, "seconds_inside", lambda *_: ours)
        monkeypatch.setattr(legs_graph, "seconds_here", lambda *_: old)
        monkeypatch.setattr(legs_graph, "same_bits", lambda *_: None)
        return legs_graph.timing(plan(claim))

    return run


def test_the_spread_is_told_with_the_median(timed: Any) -> None:
    found = timed([1.0, 1.0, 1.2], [0.5, 0.5, 0.5], None)
    assert "2.000 (samples: 2.000 to 2.400)" in found.text
    assert found.numbers["eight, 1 rows: ratio low"] == 2.0
    assert found.numbers["mean high"] == pytest.approx(2.4)


def test_a_claim_that_holds_in_every_sample_is_green_and_one_that_holds_in_none_is_red(timed: Any) -> None:
    timed([1.0, 1.1], [1.0, 1.05], 0.9)
    with pytest.raises(RedError, match=r"claims 1\.500"):
        timed([1.0, 1.1], [1.0, 1.05], 1.5)


def test_where_the_noise_reaches_over_the_claim_there_is_no_verdict(timed: Any) -> None:
    with pytest.raises(CannotRunError, match=r"no verdict: claims 1\.000"):
        timed([0.8, 1.0, 3.0], [0.9, 1.0, 1.1], 1.0)


def test_ratios_are_averaged_geometrically() -> None:
    mean = Ratio.mean([Ratio(1.0, 0.5, 2.0), Ratio(4.0, 2.0, 8.0)])
    assert (mean.middle, mean.low, mean.high) == pytest.approx((2.0, 1.0, 4.0))
