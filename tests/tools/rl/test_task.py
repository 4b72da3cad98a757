"""The synthetic task: what is right, what is half right, and that draws depend on their seed alone."""

from __future__ import annotations

import random

import pytest

from samebits.tools.rl.task import EQUALS, FIRST_DIGIT, START, Sort, draw, sampling_seeds

TASK = Sort(fewest=2, most=4, end=1)
D = FIRST_DIGIT


def test_a_prompt_holds_the_digits_between_its_frame() -> None:
    lengths = set()
    for prompt in draw(TASK, 200, 7):
        assert prompt[0] == START
        assert prompt[-1] == EQUALS
        assert all(D <= token < D + 10 for token in prompt[1:-1])
        lengths.add(len(prompt) - 2)
    assert lengths == {2, 3, 4}


@pytest.mark.parametrize(
    ("sampled", "reward"),
    [
        ([D + 1, D + 3, D + 3, 1], 1.0),
        ([D + 3, D + 1, D + 3, 1], 0.5),
        ([D + 1, D + 3, 1], 0.5),
        ([D + 1, D + 3, D + 3, D + 3, D + 3], 3 / 5),
        ([1], 0.0),
    ],
)
def test_reward_is_the_share_of_right_positions(sampled: list[int], reward: float) -> None:
    prompt = [START, D + 3, D + 1, D + 3, EQUALS]
    assert TASK.answer(prompt) == [D + 1, D + 3, D + 3, 1]
    assert TASK.reward(prompt, sampled) == reward


def test_draws_depend_on_their_seed_alone() -> None:
    first = draw(TASK, 5, 0, 3)
    random.seed(99)
    assert draw(TASK, 5, 0, 3) == first
    assert draw(TASK, 5, 0, 4) != first
    assert sampling_seeds(5, 0, 3) == sampling_seeds(5, 0, 3) != sampling_seeds(5, 0, 4)
    assert len(set(sampling_seeds(100, 0, 3))) == 100
