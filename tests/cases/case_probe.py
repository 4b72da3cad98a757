"""Operators of cases as callables, put through what `diff` does with a module at fault; and switches of a case's own.

Legend: R token rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from samebits.tools.capture.alone import Alone, Held, Shown, look
from samebits.tools.capture.passes import Pass
from samebits.tools.capture.rows import PassRows
from samebits.tools.diff.causes.fingerprint import fingerprint
from samebits.tools.diff.causes.observation import Observation, same_bits
from samebits.tools.schema.artifacts.divergence import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Operator(torch.nn.Module):
    """A callable as a module."""

    def __init__(self, run: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.call = run

    def forward(self, rows_R: torch.Tensor) -> torch.Tensor:
        return self.call(rows_R)


def alone(
    run: Callable[[torch.Tensor], torch.Tensor], rows_R: torch.Tensor, padding: Sequence[int] = ()
) -> Shown | None:
    """What `diff` proves of an operator with independent rows when it runs it alone.

    Args:
        run: the operator over token rows [R, ...], one output row per input row.
        padding: rows that hold no token.
    """
    module = Operator(run)
    sequence_R = torch.zeros(len(rows_R), dtype=torch.int32)
    sequence_R[list(padding)] = -1
    rows = PassRows(sequence_R, torch.arange(len(rows_R), dtype=torch.int32), None, None)
    before = Held.of(module)
    assert before is not None
    gave = [run(rows_R.clone()), rows_R]
    running = Pass.begin(0, rows, None)
    return look(Alone(module, ((rows_R,), {}), gave, before, running, operators=("aten.mm.default",)))


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


def switched(
    name: str, why: str, on: tuple[torch.Tensor, torch.Tensor], off: tuple[torch.Tensor, torch.Tensor]
) -> Cause:
    """A trigger of the case: its class is given only when the difference is there with it and gone without, as
    `diff --against` does with the switches of an engine.

    Args:
        name: class that this trigger means.
        why: the trigger, in words.
        on: both outputs with the trigger on.
        off: both outputs with it off.
    """
    there, gone = not same_bits(*on), same_bits(*off)
    words = fingerprint(Observation("switched", {}, *on))
    if there and gone:
        return Cause.model_validate({"name": name, "why": why, "fingerprint": words})
    reason = "the difference stays" if there else "there was no difference to begin with"
    return Cause(name="unknown", why=f"{why}: switched off, {reason}", fingerprint=words)
