"""Causes named by a trigger: something is switched, and the difference follows. Needs the operator as a callable.

Legend: R token rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from samebits.tools.diff.causes.fingerprint import fingerprint
from samebits.tools.diff.causes.observation import Observation, same_bits
from samebits.tools.schema.artifacts.divergence import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def words(a: torch.Tensor, b: torch.Tensor) -> str:
    """Fingerprint of two outputs."""
    return fingerprint(Observation("probe", {}, a, b))


def repeats(run: Callable[[], torch.Tensor], times: int = 8) -> Cause | None:
    """The same call again: race (or dropout, or a random order) when any repeat has other bits."""
    first = run().clone()
    for count in range(2, times + 1):
        again = run()
        if not same_bits(first, again):
            why = f"call {count} of the same operator on the same inputs gave other bits"
            return Cause(name="race", why=why, fingerprint=words(first, again))
    return None


def company(
    run: Callable[[torch.Tensor], torch.Tensor], rows_R: torch.Tensor, alone: Sequence[int] = (0,), times: int = 4
) -> Cause | None:
    """A row alone and in company; None: no bit moves.

    A race is looked for first: an operator that is not equal to itself on a repeat says nothing about its batch.

    Args:
        run: the operator over token rows [R, ...], one output row per input row.
        rows_R: the rows of a batch.
        alone: rows tried by themselves.
    """
    raced = repeats(lambda: run(rows_R), times)
    if raced is not None:
        return raced
    together = run(rows_R)
    solo = torch.cat([run(rows_R[i : i + 1]) for i in alone])
    chosen = together[list(alone)]
    if same_bits(solo, chosen):
        return None
    count = int((~torch.tensor([same_bits(a, b) for a, b in zip(solo, chosen, strict=True)])).sum())
    why = (
        f"{count} of {len(alone)} rows have other bits alone than among {len(rows_R)} rows; a repeat has the same bits"
    )
    return Cause(name="order_batch", why=why, fingerprint=words(solo, chosen))


def drivers(
    run: Callable[[torch.Tensor], torch.Tensor], rows_R: torch.Tensor, sizes: Sequence[int]
) -> tuple[dict[int, bool], bool]:
    """What moves row 0: batch size, or its place in the batch.

    Returns:
        For each size whether row 0 has the bits it has among all rows, and whether its place in the full batch moves a
        bit.
    """
    full = run(rows_R)
    by_size = {size: same_bits(run(rows_R[:size])[:1], full[:1]) for size in sizes}
    turned = run(rows_R.roll(1, 0))
    return by_size, not same_bits(turned[1:2], full[:1])


def poison(run: Callable[[torch.Tensor], torch.Tensor], rows_R: torch.Tensor, padding: Sequence[int]) -> Cause | None:
    """Padding rows of NaN: state leaks when a real row moves."""
    quiet, loud = rows_R.clone(), rows_R.clone()
    quiet[list(padding)] = 0
    loud[list(padding)] = float("nan")
    real = [i for i in range(len(rows_R)) if i not in set(padding)]
    before, after = run(quiet)[real], run(loud)[real]
    if same_bits(before, after):
        return None
    why = f"real rows change when the {len(padding)} padding rows hold NaN: padding leaks into them"
    return Cause(name="state", why=why, fingerprint=words(before, after))


def switched(
    name: str, why: str, on: tuple[torch.Tensor, torch.Tensor], off: tuple[torch.Tensor, torch.Tensor]
) -> Cause:
    """A trigger was switched: named only when the difference is there with it and gone without.

    Args:
        name: class that this trigger means.
        why: the trigger, in words.
        on: both outputs with the trigger on.
        off: both outputs with it off.
    """
    there, gone = not same_bits(*on), same_bits(*off)
    if there and gone:
        return Cause.model_validate({"name": name, "why": why, "fingerprint": words(*on)})
    reason = "the difference stays" if there else "there was no difference to begin with"
    return Cause(name="unknown", why=f"{why}: switched off, {reason}", fingerprint=words(*on))
