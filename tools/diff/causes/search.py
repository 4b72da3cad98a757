"""Looks for plain PyTorch arithmetics that give each side's bits, all of them, and for the step they differ in."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from samebits.tools.diff.bits import ordered
from samebits.tools.diff.causes.fingerprint import marks
from samebits.tools.diff.causes.observation import same_bits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from samebits.tools.diff.causes.observation import Arithmetic, Observation, Option, Setting

SAMPLE = 24
"""Rows with differences on which an arithmetic is tried before it is run on all."""
ELEMENTS = 1 << 28
"""Output elements computed in one search, at most (samples and full runs together)."""
SEVERITY = ("data", "formula", "precision", "path", "cast", "order_static", "order_batch")
"""Which class names a difference of several steps: the one furthest from mere rounding."""


@dataclass(slots=True)
class Fits:
    """What a search found."""

    rollout: list[dict[str, str]]
    trainer: list[dict[str, str]]
    tried: int
    exhausted: bool
    """False: the budget ended the search."""


def picks(settings: tuple[Setting, ...], depth: int) -> Iterator[dict[str, str]]:
    """All ways to change exactly `depth` settings of the plain arithmetic."""
    plain = {setting.name: setting.options[0].name for setting in settings}
    for chosen in itertools.combinations(settings, depth):
        for options in itertools.product(*(cheap(setting) for setting in chosen)):
            changed = {setting.name: option.name for setting, option in zip(chosen, options, strict=True)}
            yield {**plain, **changed}


def cheap(setting: Setting) -> list[Option]:
    """Options other than the plain one that are tried in any combination."""
    return [option for option in setting.options[1:] if not option.known]


def option_of(settings: tuple[Setting, ...], setting: str, name: str) -> Option:
    """The option of this name."""
    return next(option for one in settings if one.name == setting for option in one.options if option.name == name)


def possible(settings: tuple[Setting, ...], pick: Mapping[str, str]) -> bool:
    """Whether a pick made elsewhere names an option of every setting here, and nothing else."""
    return {one.name for one in settings} == set(pick) and all(
        any(option.name == pick[one.name] for option in one.options) for one in settings
    )


def sample_rows(seen: Observation) -> torch.Tensor:
    """Rows with differences, and some without: [at most SAMPLE * 4 / 3]."""
    differs = (ordered(seen.rollout) != ordered(seen.trainer)).reshape(seen.rollout.shape[0], -1).any(-1)
    hit, miss = differs.nonzero()[:, 0], (~differs).nonzero()[:, 0]
    return torch.cat([spread(hit, SAMPLE), spread(miss, SAMPLE // 3)]).sort().values


def spread(index: torch.Tensor, count: int) -> torch.Tensor:
    """At most this many entries, evenly from first to last."""
    if len(index) <= count:
        return index
    return index[torch.linspace(0, len(index) - 1, count).long()]


def search(seen: Observation, arithmetic: Arithmetic, known: Fits | None = None) -> Fits:
    """Try the arithmetics with fewest changes first.

    Args:
        known: what fits the same operator in another layer. The same code runs here, so those arithmetics, chosen
            before these elements were seen, are tried first; when they give every bit of both sides, nothing else is.
    """
    settings = arithmetic.settings(seen)
    few = sampled(seen, arithmetic, settings)
    if known is not None:
        again = Fits([], [], 0, known.exhausted)
        for pick in (*known.rollout, *(pick for pick in known.trainer if pick not in known.rollout)):
            if possible(settings, pick):
                again.tried += 1
                try_one(seen, few, arithmetic, settings, pick, again)
        if again.rollout and again.trainer:
            return again
    fits = Fits([], [], 0, exhausted=True)
    computed = 0
    (plain,) = picks(settings, 0)
    for kernel in arithmetic.kernels(seen):
        fits.tried += 1
        computed += try_one(seen, few, arithmetic, settings, {**plain, **kernel}, fits)
    for depth in range(arithmetic.depth + 1):
        if depth > 2 and fits.rollout and fits.trainer:
            break
        for pick in picks(settings, depth):
            if computed > ELEMENTS:
                fits.exhausted = False
                return fits
            fits.tried += 1
            computed += try_one(seen, few, arithmetic, settings, pick, fits)
    return fits


def sampled(seen: Observation, arithmetic: Arithmetic, settings: tuple[Setting, ...]) -> Observation:
    """A few rows, when there are many and the plain arithmetic gives a row the same bits among few as among all."""
    if not arithmetic.row_roles or seen.rollout.shape[0] <= 2 * SAMPLE:
        return seen
    index = sample_rows(seen)
    few = seen.rows(index, arithmetic.row_roles)
    (plain,) = picks(settings, 0)
    return few if same_bits(arithmetic.run(few, plain), arithmetic.run(seen, plain)[index]) else seen


def try_one(
    seen: Observation,
    few: Observation,
    arithmetic: Arithmetic,
    settings: tuple[Setting, ...],
    pick: dict[str, str],
    fits: Fits,
) -> int:
    """Run one arithmetic; file it under the sides whose every bit it gives. Returns the elements computed."""
    whole = few is seen or any(option_of(settings, name, option).whole for name, option in pick.items())
    computed = 0
    if not whole:
        out = arithmetic.run(few, pick)
        computed = out.numel()
        if not same_bits(out, few.rollout) and not same_bits(out, few.trainer):
            return computed
    out = arithmetic.run(seen, pick)
    if same_bits(out, seen.rollout):
        fits.rollout.append(pick)
    if same_bits(out, seen.trainer):
        fits.trainer.append(pick)
    return computed + out.numel()


@dataclass(slots=True, frozen=True)
class Explanation:
    """Two arithmetics, one per side, as alike as possible."""

    rollout: Mapping[str, str]
    trainer: Mapping[str, str]
    steps: Mapping[str, str]
    """Settings in which they differ, with the class of each."""
    rivals: frozenset[str]
    """Classes that equally simple pairs would name and this one would not."""


def classes(settings: tuple[Setting, ...], rollout: Mapping[str, str], trainer: Mapping[str, str]) -> dict[str, str]:
    """The steps in which two arithmetics differ, with the class of each."""
    found = {}
    for setting in settings:
        if rollout[setting.name] != trainer[setting.name]:
            own = {option_of(settings, setting.name, side[setting.name]).cause for side in (rollout, trainer)} - {""}
            found[setting.name] = min(own or {setting.cause}, key=SEVERITY.index)
    return found


def effects(seen: Observation, arithmetic: Arithmetic, best: Explanation) -> dict[str, int]:
    """Elements of the trainer's output that move when one step alone is done as the rollout does it."""
    moved = {}
    for step in best.steps:
        out = arithmetic.run(seen, {**best.trainer, step: best.rollout[step]})
        moved[step] = int((ordered(out) != ordered(seen.trainer)).sum())
    return moved


def explain(settings: tuple[Setting, ...], fits: Fits) -> Explanation | None:
    """The pair of fitting arithmetics with the fewest unequal steps."""
    plain = {setting.name: setting.options[0].name for setting in settings}

    def cost(pair: tuple[Mapping[str, str], Mapping[str, str]]) -> tuple[int, int]:
        apart = sum(pair[0][name] != pair[1][name] for name in plain)
        return apart, sum(side[name] != plain[name] for side in pair for name in plain)

    pairs = list(itertools.product(fits.rollout, fits.trainer))
    if not pairs:
        return None
    best = min(pairs, key=cost)
    alike = [pair for pair in pairs if cost(pair) == cost(best)]
    steps = classes(settings, *best)
    others = frozenset(cause for pair in alike for cause in classes(settings, *pair).values())
    return Explanation(best[0], best[1], steps, others - set(steps.values()))


def enough(seen: Observation, fits: Fits) -> bool:
    """Whether a fit by chance is out of the question: less likely than 2^-20 over all arithmetics tried."""
    return marks(seen.rollout, seen.trainer).bits_of_evidence >= 20 + math.log2(max(2, fits.tried))
