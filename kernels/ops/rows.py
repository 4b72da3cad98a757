"""Calls of an operator, and the groups of calls in which the same token rows must have the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Args = dict[str, Any]
"""Keyword arguments of one call: tensors, numbers, None."""
Shape = Mapping[str, int]
Draw = Callable[[Shape, int, torch.dtype, torch.device, int, bool], Args]
"""(shape, rows, dtype, device, seed, exact) -> Args"""


@dataclass(slots=True, frozen=True)
class Case:
    """One call. `finite`: no input holds NaN or Inf, so an error against float64 can be taken."""

    name: str
    args: Args
    finite: bool = True


@dataclass(slots=True, frozen=True)
class Call:
    """One call of a group: `rows[i]` is where the group's i-th shared row stands in its outputs, if it does."""

    label: str
    args: Args
    rows: tuple[int | None, ...]


@dataclass(slots=True, frozen=True)
class RowGroup:
    """Calls in which the shared rows must have the bits they have in the first call that holds them."""

    name: str
    calls: Iterator[Call]


HUGE = {torch.float32: 1e38, torch.bfloat16: 1e38, torch.float16: 6e4}
POSITIONS = 7
"""Rows of the company in `companies`: a row is put at each of its places."""


def take(args: Args, row_args: tuple[str, ...], index: torch.Tensor) -> Args:
    """The call with the rows `index` of every row argument."""
    return {
        name: value[index.to(value.device)] if name in row_args and value is not None else value
        for name, value in args.items()
    }


def flooded(args: Args, row_args: tuple[str, ...], keep: int, value: float) -> Args:
    """The call with every row but `keep` of each floating row argument overwritten by `value`."""
    changed = dict(args)
    for name in row_args:
        old = args[name]
        if old is None or not old.is_floating_point():
            continue
        new = torch.full_like(old, value)
        new[keep] = old[keep]
        changed[name] = new
    return changed


def companies(
    draw: Draw, row_args: tuple[str, ...], shape: Shape, dtype: torch.dtype, device: torch.device, exact: bool
) -> Iterator[RowGroup]:
    """A row alone, in company, at every position, and beside huge, NaN and Inf rows (for operators whose rows are dim
    0).
    """
    args = draw(shape, POSITIONS, dtype, device, 101, exact)
    count = POSITIONS

    def calls() -> Iterator[Call]:
        for row in range(count):
            yield Call(
                f"row {row} alone",
                take(args, row_args, torch.tensor([row])),
                tuple(0 if i == row else None for i in range(count)),
            )
        yield Call("in company", args, tuple(range(count)))
        for shift in range(1, count):
            order = torch.roll(torch.arange(count), shift)
            places = tuple(int((order == i).nonzero()[0, 0]) for i in range(count))
            yield Call(f"every row moved by {shift}", take(args, row_args, order), places)
        floods = {
            "huge": HUGE[dtype],
            "-huge": -HUGE[dtype],
            "NaN": float("nan"),
            "Inf": float("inf"),
            "-Inf": float("-inf"),
        }
        for word, value in floods.items():
            for keep in (0, count // 2, count - 1):
                rows = tuple(i if i == keep else None for i in range(count))
                yield Call(f"row {keep} with {word} neighbours", flooded(args, row_args, keep, value), rows)

    yield RowGroup("alone, in company, every position, any neighbour", calls())


def sizes(largest: int, dense: int) -> list[int]:
    """Every M up to `dense`, then the powers of two up to `largest` and their neighbours."""
    edges = {edge + step for power in range(20) if dense < (edge := 1 << power) <= largest for step in (-1, 0, 1)}
    return [*range(1, dense + 1), *sorted(m for m in edges if dense < m <= largest)]


def sweep(
    draw: Draw,
    row_args: tuple[str, ...],
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    exact: bool,
    *,
    dense: int,
    largest: int,
) -> Iterator[RowGroup]:
    """The same rows in calls of every size."""
    args = draw(shape, largest, dtype, device, 102, exact)

    def calls() -> Iterator[Call]:
        for m in reversed(sizes(largest, dense)):
            kept = torch.arange(m)
            yield Call(f"M={m}", take(args, row_args, kept), tuple(i if i < m else None for i in range(largest)))

    yield RowGroup("sweep of M", calls())
