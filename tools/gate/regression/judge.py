"""From what an axis compared to its outcome, and from the axes to the verdict.

Legend: N sampled tokens in all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from samebits.tools.measure import gap
from samebits.tools.schema.artifacts.regression import (
    AxisRow,
    Broke,
    Compared,
    ControlRow,
    Differs,
    Exact,
    Green,
    NotRun,
    Red,
    Throughput,
    TimedOut,
    TooFew,
    Unjudged,
    Vacuous,
)

if TYPE_CHECKING:
    import torch

    from samebits.tools.schema.artifacts.regression import AxisName, NoThroughput, Outcome


@dataclass(slots=True)
class Tried:
    """What one axis did so far."""

    compared: list[Compared] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    control: ControlRow | None = None
    no_control: str = "no control was made"
    """Why there is none, while there is none."""
    seconds: float = 0.0
    out_of_time: float | None = None
    """The limit in seconds, when it was over first."""
    broke: str = ""
    """What ended its side."""


def histogram(a_N: torch.Tensor, b_N: torch.Tensor, used_N: torch.Tensor) -> tuple[int, ...]:
    """Tokens by distance in ulps: [0] equal, [k] from 2**(k-1) to 2**k - 1. Empty when nothing is used."""
    counts: list[int] = []
    for distance in gap.ulps(a_N[used_N], b_N[used_N]).tolist():
        bucket = int(distance).bit_length()
        counts += [0] * (bucket + 1 - len(counts))
        counts[bucket] += 1
    return tuple(counts)


def compared(words: str, a_N: torch.Tensor, b_N: torch.Tensor, used_N: torch.Tensor, due: int) -> Compared:
    """Compare two columns over the used tokens."""
    return Compared(words=words, stats=gap.stats(a_N, b_N, used_N), due=due, ulps=histogram(a_N, b_N, used_N))


def control(disturbed: str, a_N: torch.Tensor, b_N: torch.Tensor, used_N: torch.Tensor) -> ControlRow:
    """The same comparison, of a disturbed run."""
    return ControlRow(disturbed=disturbed, stats=gap.stats(a_N, b_N, used_N), ulps=histogram(a_N, b_N, used_N))


def comparison_control(lp_N: torch.Tensor, valid_N: torch.Tensor) -> ControlRow:
    """Flip the lowest stored bit of one valid token, behind the engine's back: the comparison must see one token."""
    import torch

    places = valid_N.nonzero().view(-1)
    place = int(places[len(places) // 2])
    moved_N = lp_N.clone()
    moved_N.view(torch.int32)[place] ^= 1
    return control(f"the lowest stored bit of token {place}", lp_N, moved_N, valid_N)


def outcome(tried: Tried, min_tokens: int) -> Outcome:
    """Differences first, then time, coverage, then the control: what did not fail when it had to proves nothing."""
    for way in tried.compared:
        if way.stats.nonzero or way.stats.nonfinite:
            return Differs(way=way.words, stats=way.stats)
    if tried.out_of_time is not None:
        return TimedOut(limit_s=tried.out_of_time)
    if tried.broke:
        return Broke(reason=tried.broke)
    if not tried.compared:
        return NotRun(reason="; ".join(tried.skipped) or "nothing was compared")
    for way in tried.compared:
        needed = max(way.due, min_tokens)
        if way.stats.tokens < needed:
            return TooFew(way=way.words, tokens=way.stats.tokens, needed=needed)
    if tried.control is None:
        return NotRun(reason=f"no control could be made, so nothing is proved: {tried.no_control}")
    if not tried.control.failed:
        return Vacuous(reason=f"the control did not fail ({tried.control.disturbed}), so this check proves nothing")
    return Exact(tokens=min(way.stats.tokens for way in tried.compared))


def row(name: AxisName, tried: Tried, min_tokens: int, required: bool) -> AxisRow:
    """The row of an axis."""
    return AxisRow(
        name=name,
        required=required,
        outcome=outcome(tried, min_tokens),
        compared=tuple(tried.compared),
        skipped=tuple(tried.skipped),
        control=tried.control,
        seconds=tried.seconds,
    )


def slow(measured: Throughput | NoThroughput | None) -> list[str]:
    """Why throughput keeps a gate from being green: below the bar beyond the noise, or required and not judged."""
    if measured is None:
        return []
    if not isinstance(measured, Throughput):
        return [f"throughput: required, but not measured: {measured.reason}"] if measured.required else []
    low, high = measured.span
    said = f"throughput: {measured.ratio:.2f} of the engine without samebits (runs: {low:.2f} to {high:.2f})"
    if measured.verdict == "below":
        return [f"{said}, the bar is {measured.bar:.2f}"]
    if measured.verdict == "unclear" and measured.required:
        return [f"{said}: the noise of this machine reaches over the bar of {measured.bar:.2f}"]
    return []


def verdict(
    rows: tuple[AxisRow, ...], comparison: ControlRow, measured: Throughput | NoThroughput | None = None
) -> Green | Red | Unjudged:
    """Red when bits differ; unjudged when something that had to be proved was not; else green."""
    differing = [
        f"{r.name}: {r.outcome.way}: {r.outcome.stats.nonzero} of {r.outcome.stats.tokens} tokens differ"
        + (f", {r.outcome.stats.nonfinite} not finite" if r.outcome.stats.nonfinite else "")
        for r in rows
        if r.outcome.status == "differs"
    ]
    unproved = [f"{r.name}: {_unproved(r)}" for r in rows if r.red and r.outcome.status != "differs"]
    if comparison.stats.nonzero != 1:
        unproved.insert(0, f"the comparison itself does not see a flipped bit ({comparison.disturbed})")
    unproved += slow(measured)
    proved = tuple(r.name for r in rows if r.outcome.status == "exact")
    if differing:
        return Red(reasons=tuple(differing + unproved))
    if unproved or not proved:
        return Unjudged(reasons=tuple(unproved or ["no axis could run"]))
    tokens = sum(way.stats.tokens for r in rows if r.outcome.status == "exact" for way in r.compared)
    return Green(tokens=tokens, axes=proved)


def _unproved(row: AxisRow) -> str:
    if row.outcome.status == "too_few":
        return f"{row.outcome.way}: {row.outcome.tokens} tokens compared, {row.outcome.needed} needed"
    if row.outcome.status == "timed_out":
        return f"timed out after {row.outcome.limit_s:.0f} s"
    if row.outcome.status == "broke":
        return f"broke: {row.outcome.reason}"
    if row.outcome.status == "not_run":
        return f"required, but not run: {row.outcome.reason}"
    assert row.outcome.status == "vacuous"
    return row.outcome.reason
