"""Proves the work list: operators are put right one after the other until the logprobs are equal.

Pass k has the first k suspects put right and nothing else. Each step shows that the difference moves to a strictly
later site (or ends), that with the suspect's own output back it is back, and what this one operator does to the
logprobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from samebits.tools.diff.force import put_right
from samebits.tools.diff.rows import by_digest
from samebits.tools.measure.gap import stats

if TYPE_CHECKING:
    import torch

    from samebits.tools.align.taps import Taps
    from samebits.tools.diff.asking import Asker
    from samebits.tools.diff.find import Found
    from samebits.tools.schema.artifacts.gap import GapStats
    from samebits.tools.schema.sites import CapturePlan

END = "the logprobs are equal"


@dataclass(slots=True)
class Link:
    """State with the first k suspects put right."""

    logprob_N: torch.Tensor
    gap: GapStats
    """Against the rollout."""
    first: str
    """First paired site that differs, or END."""
    order: int
    """Its place in the execution order; a large number at the end."""


GROUPS = 8
"""Steps in which the operators beyond the limit are put right."""


def schedule(count: int, limit: int) -> list[int]:
    """How many operators are right in each pass: one more each time, and beyond the limit several at once, up to all of
    them."""
    if count <= limit:
        return list(range(count + 1))
    single = max(limit - GROUPS, 1)
    rest = [single + (count - single) * step // GROUPS for step in range(1, GROUPS + 1)]
    return list(range(single + 1)) + sorted(set(rest) - set(range(single + 1)))


def walk(
    asker: Asker,
    rollout: Taps,
    found: Found,
    plan: CapturePlan,
    rollout_N: torch.Tensor,
    valid_N: torch.Tensor,
    limit: int,
) -> dict[int, Link]:
    """One pass for each number of operators put right; see `schedule`."""
    regions = tuple(sorted({suspect.container for suspect in found.suspects if suspect.pair.trainer.op}))
    # Only what `_first_differing` asks for is recorded.
    changes: dict[str, object] = {"store": "digest", "sites": tuple(pair.trainer for pair in found.pairs)}
    if regions:
        # Operators inside a region must be told apart: without their taps the difference seems not to move.
        changes |= {"level": "operator", "modules": regions, "ports": "all"}
    digest_plan = plan.model_copy(update=changes)
    links = {}
    counts = schedule(len(found.suspects), limit)
    for step, count in enumerate(counts):
        asker.job.emit("prove", "putting operators right one by one", step, len(counts))
        edits = put_right([suspect.pair for suspect in found.suspects[:count]], rollout)
        answer = asker.score("trainer", f"right-{count}", digest_plan, edits)
        first, order = _first_differing(found, count, rollout, answer.taps)
        gap = stats(rollout_N, answer.logprob_N, valid_N & answer.scored_N)
        if gap.exact and first != END:
            first += " (the logprobs are equal all the same)"
        links[count] = Link(answer.logprob_N, gap, first, order)
    return links


def around(links: dict[int, Link], index: int) -> tuple[Link, Link, int]:
    """The passes before and after the operator with this index was put right, and how many were put right together with
    it."""
    before = max(count for count in links if count <= index)
    after = min(count for count in links if count > index)
    return links[before], links[after], after - before


def _first_differing(found: Found, count: int, rollout: Taps, taps: Taps) -> tuple[str, int]:
    """The sites that were put right are left out: their own taps show the value before the edit."""
    right = {str(suspect.pair.trainer) for suspect in found.suspects[:count]}
    pairs = [pair for pair in found.pairs if str(pair.trainer) not in right]
    differing = [str(counted.pair.trainer) for counted in by_digest(pairs, rollout, taps) if counted.differing]
    if not differing:
        return END, 1 << 60
    first = min(differing, key=lambda site: taps.tap(site).order)
    return first, taps.tap(first).order


def effect(before: Link, after: Link, valid_N: torch.Tensor) -> GapStats:
    """What putting one operator right did to the logprobs."""
    return stats(after.logprob_N, before.logprob_N, valid_N)
