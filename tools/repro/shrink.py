"""Makes an operator smaller along its axes while the two sides still differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from samebits.tools.diff.causes.fingerprint import marks
from samebits.tools.diff.causes.observation import same_bits
from samebits.tools.repro import axes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from samebits.tools.diff.causes.observation import Observation

Rerun = Callable[["Observation"], "Observation"]
GROWTH = 4.0
"""A smaller operator must not differ by more than this times the original: that would be another difference."""
PLACES = 3
"""Windows tried per length."""


@dataclass(slots=True)
class Shrunk:
    """The result, and how far it went."""

    seen: Observation
    before: dict[str, int]
    after: dict[str, int]
    runs: int

    def line(self) -> str:
        """rows 120 -> 1, K 4096 -> 16, ..."""
        moved = [f"{axes.NAMES[a]} {self.before[a]:,} -> {self.after[a]:,}" for a in self.before if a in self.after]
        return ", ".join(moved) or "nothing to shrink"


def shrink(seen: Observation, rerun: Rerun, *, by_batch: bool = False) -> Shrunk:
    """Axis by axis, to the smallest power-of-two window that still differs, until nothing moves any more.

    Args:
        seen: an operator whose outputs differ.
        rerun: computes both outputs anew on smaller inputs.
        by_batch: the bits follow the batch, so what is kept need not keep its bits.
    """
    letters = [letter for letter in axes.SHRINK.get(seen.kind, "") if exists(seen, letter)]
    result = Shrunk(seen, {letter: axes.size(seen, letter) for letter in letters}, {}, 0)
    most = marks(seen.rollout, seen.trainer).max_abs * GROWTH
    moving = True
    while moving:
        moving = False
        for letter in letters:
            smaller = along(result, letter, rerun, most, by_batch)
            if smaller is not None:
                result.seen, moving = smaller, True
    result.after = {letter: axes.size(result.seen, letter) for letter in letters}
    return result


def exists(seen: Observation, letter: str) -> bool:
    """Whether some recorded input has this axis."""
    return any(letter in letters and seen.has(role) for role, letters in axes.SHAPES[seen.kind].items())


def along(result: Shrunk, letter: str, rerun: Rerun, most: float, by_batch: bool) -> Observation | None:
    """The smallest window of one axis with which the sides still differ."""
    seen = result.seen
    for start, count in windows(seen, letter):
        cut = axes.take(seen, letter, start, count)
        if cut is None or axes.size(cut, letter) >= axes.size(seen, letter):
            continue
        try:
            again = rerun(cut)
        except (RuntimeError, ValueError, IndexError, TypeError, ZeroDivisionError):
            continue  # a shape this operator does not take
        result.runs += 1
        before = None if by_batch else axes.kept(seen, letter, start, count)
        if before and not (same_bits(again.rollout, before[0]) and same_bits(again.trainer, before[1])):
            continue  # another kernel is chosen for this size: its difference would be another one
        found = marks(again.rollout, again.trainer)
        if found.differing and found.max_abs <= most:
            return again
    return None


def windows(seen: Observation, letter: str) -> Iterator[tuple[int, int]]:
    """(start, length), shortest first; around the indices that differ most where the output has the axis."""
    length, counts = axes.size(seen, letter), axes.differing(seen, letter)
    centres = [0, length - 1] if counts is None else counts.argsort(descending=True, stable=True)[:PLACES].tolist()
    size = 1
    while size < length:
        starts = [max(0, min(int(centre) - size // 2, length - size)) for centre in centres]
        for start in dict.fromkeys(starts):
            if counts is None or bool(counts[start : start + size].any()):
                yield start, size
        size *= 2
    if length > 1:
        yield 0, length - 1
        yield 1, length - 1
