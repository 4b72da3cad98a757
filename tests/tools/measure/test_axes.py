"""A side against itself. The scores here are made up, the decisions are what is tested; real engines are in
test_verb_vllm.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from samebits.tools.measure import axes
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Experiment
from samebits.tools.schema.passes import How
from samebits.tools.sides.protocol import RolloutData, Scores, Sequence

COUNT = 6
FACTS: dict[str, Any] = {"largest_batch": 2, "passes": 5, "chunked_prefills": 0, "prefix_hit_tokens": 0}


def scores(facts: dict[str, Any], moved: int = 0) -> Scores:
    logprob_N = -torch.arange(1, COUNT + 1, dtype=torch.float32)
    logprob_N[:moved] += 0.25
    return Scores(logprob_N, torch.ones(COUNT, dtype=torch.bool), FACTS | facts)


@dataclass
class Answers:
    """Stands in for Sides: answers by the way that is asked for."""

    by_way: Any
    experiment: Experiment = field(default_factory=Experiment)

    def score(self, _role: str, _rollout: Path, how: How) -> tuple[Scores, Path]:
        return self.by_way(how), Path()


def run(name: str, by_way: Any, role: Any = "rollout") -> Any:
    data = RolloutData(
        [Sequence([1] * 40, [2, 3, 4]), Sequence([1, 2], [2, 3, 4])],
        scores({}).logprob_N,
        torch.ones(COUNT, dtype=torch.bool),
    )
    return axes.run(Answers(by_way), role, name, Path(), data, scores({}))  # type: ignore[arg-type]


EFFECT: dict[str, dict[str, Any]] = {
    "repeat": {},
    "batch": {"largest_batch": 1},
    "decode_prefill": {"passes": 6},
    "chunked_prefill": {"chunked_prefills": 1},
    "prefix_hit": {"prefix_hit_tokens": 32},
}


@pytest.mark.parametrize("name", list(EFFECT))
def test_an_axis_that_took_effect_and_moved_nothing_is_the_same(name: str) -> None:
    axis = run(name, lambda how: scores(EFFECT[name]))
    assert (axis.outcome.status, axis.tokens) == ("same", COUNT)


@pytest.mark.parametrize("name", list(EFFECT))
def test_an_axis_that_moves_a_bit_varies_and_names_its_trigger(name: str) -> None:
    axis = run(name, lambda how: scores(EFFECT[name], moved=2))
    assert axis.outcome.status == "varies"
    assert (axis.outcome.stats.nonzero, axis.outcome.stats.tokens, bool(axis.outcome.trigger)) == (2, COUNT, True)


@pytest.mark.parametrize("name", [name for name in EFFECT if name != "repeat"])
def test_an_axis_without_effect_was_not_run_however_equal_it_is(name: str) -> None:
    axis = run(name, lambda how: scores({}))
    assert (axis.outcome.status, axis.tokens, bool(axis.outcome.reason)) == ("not_run", 0, True)


def test_prefills_that_fill_as_many_passes_as_there_are_steps_take_effect() -> None:
    """Of an engine: their number of requests is another one."""
    axis = run("decode_prefill", lambda how: scores({"requests": 6}, moved=2))
    assert (axis.outcome.status, axis.outcome.stats.nonzero) == ("varies", 2)


def test_a_batch_of_one_alone_can_decide() -> None:
    axis = run("batch", lambda how: scores({"largest_batch": how.concurrency}, moved=1 if how.concurrency == 1 else 0))
    assert axis.outcome.trigger == "a batch of one"
    axis = run("batch", lambda how: scores({"largest_batch": how.concurrency}, moved=1 if how.concurrency == 3 else 0))
    assert axis.outcome.trigger == "three sequences in flight"


def test_tokens_that_are_not_finite_prove_nothing() -> None:
    broken = scores(EFFECT["batch"])
    broken.logprob_N[:] = scores({}).logprob_N
    broken.logprob_N[0] = float("nan")
    plain = scores({})
    plain.logprob_N[0] = float("nan")
    data = RolloutData([Sequence([1], [2] * COUNT)], plain.logprob_N, torch.ones(COUNT, dtype=torch.bool))
    axis = axes.run(Answers(lambda how: broken), "rollout", "batch", Path(), data, plain)  # type: ignore[arg-type]
    assert axis is not None
    assert axis.outcome.status == "not_run"


def test_only_tokens_scored_both_ways_are_compared() -> None:
    def thinned(how: How) -> Scores:
        answer = scores({"passes": 3}, moved=1)
        answer.scored_N[0] = False
        return answer

    axis = run("decode_prefill", thinned)
    assert (axis.outcome.status, axis.tokens) == ("same", COUNT - 1)


def test_the_trainer_has_repeat_and_micro_batch_only() -> None:
    assert run("batch", lambda how: scores({}), role="trainer") is None
    axis = run("micro_batch", lambda how: scores({"largest_batch": how.concurrency}), role="trainer")
    # The configured micro batch is 1: only the larger one is another way.
    assert axis.outcome.status == "not_run"


def test_axes_by_name_and_by_default() -> None:
    assert "eager_compiled" not in axes.chosen(None)
    assert axes.chosen(("prefix_hit", "eager_compiled", "repeat")) == ("repeat", "prefix_hit", "eager_compiled")
    assert axes.chosen(()) == ()
    with pytest.raises(UserError, match="'bach'"):
        axes.chosen(("bach",))
