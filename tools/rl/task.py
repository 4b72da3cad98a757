"""The synthetic task: sort digits. Answers are checked by a rule, so that no reward model is in the way."""

from __future__ import annotations

import random
from dataclasses import dataclass

START, EQUALS, FIRST_DIGIT = 2, 3, 4
"""Token ids of the prompt's frame and of the digit 0; ids 0 and 1 are left to begin and end tokens."""
DIGITS = 10
VOCABULARY = FIRST_DIGIT + DIGITS


@dataclass(slots=True, frozen=True)
class Sort:
    """Prompt: START, digits, EQUALS. Right answer: the digits in ascending order, then the end token."""

    fewest: int
    most: int
    end: int

    @property
    def new_tokens(self) -> int:
        """The longest right answer."""
        return self.most + 1

    def prompt(self, generator: random.Random) -> list[int]:
        """Draw one."""
        count = generator.randint(self.fewest, self.most)
        return [START, *(FIRST_DIGIT + generator.randrange(DIGITS) for _ in range(count)), EQUALS]

    def answer(self, prompt: list[int]) -> list[int]:
        """The right one."""
        return [*sorted(prompt[1:-1]), self.end]

    def reward(self, prompt: list[int], sampled: list[int]) -> float:
        """Share of positions that are right, from 0 to 1; what is missing or too much is wrong."""
        right = self.answer(prompt)
        hits = sum(a == b for a, b in zip(right, sampled, strict=False))
        return hits / max(len(right), len(sampled))


def draw(task: Sort, count: int, *seed: int | str) -> list[list[int]]:
    """`count` prompts from a seed of their own: what was drawn before changes nothing."""
    generator = random.Random("/".join(map(str, seed)))
    return [task.prompt(generator) for _ in range(count)]


def sampling_seeds(count: int, *seed: int | str) -> list[int]:
    """One seed per request."""
    generator = random.Random("sample/" + "/".join(map(str, seed)))
    return [generator.randrange(1 << 31) for _ in range(count)]
