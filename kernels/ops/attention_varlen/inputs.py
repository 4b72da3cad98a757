"""Calls of varlen attention. T tokens, H query heads, G key heads, D head size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from samebits.kernels.ops.attention import inputs as paged
from samebits.kernels.ops.attention.inputs import NAN, Story, story
from samebits.kernels.ops.rows import HUGE, Args, Call, Case, RowGroup, Shape

SHAPES: tuple[Shape, ...] = tuple(s for s in paged.SHAPES if s["page"] == 16)
SMALL_SHAPES: tuple[Shape, ...] = paged.SMALL_SHAPES[:1]
DTYPES = paged.DTYPES
ROWS = ("q", "k", "v")
GRADS = ("q", "k", "v")


def join(shape: Shape, stories: Sequence[Story], exact: bool) -> Args:
    """One call of whole sequences."""
    lengths = [len(one.q) for one in stories]
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=stories[0].q.device)
    tensors = {name: torch.cat([getattr(one, name) for one in stories]) for name in ("q", "k", "v")}
    return {
        **tensors,
        "cu_seqlens": bounds,
        "max_seq_len": max(lengths),
        "scale": 0.6931471805599453 if exact else shape["head"] ** -0.5,
    }


def draw(shape: Shape, rows: int, dtype: torch.dtype, device: torch.device, seed: int, exact: bool) -> Args:
    """`rows` tokens in one sequence, or in two when there are more than four."""
    lengths = [rows] if rows <= 4 else [rows // 3, rows - rows // 3]
    return join(shape, [story(shape, n, dtype, device, seed + i, exact) for i, n in enumerate(lengths)], exact)


def cases(shape: Shape, dtype: torch.dtype, device: torch.device, exact: bool) -> list[Case]:
    """One token; edges of tiles and segments; many short sequences; large scores."""
    large = device.type == "cuda"

    def call(*lengths: int) -> Args:
        return join(shape, [story(shape, n, dtype, device, 11 * n + i, exact) for i, n in enumerate(lengths)], exact)

    found = [
        Case("one token", call(1)),
        Case("at edges of a tile", call(127, 128, 129)),
        Case("short sequences", call(1, 2, 3, 1, 5)),
    ]
    if large:
        found.append(Case("at edges of a segment", call(511, 512, 513, 1500)))
    if not exact:
        found.append(Case("large scores", {**call(60, 9), "scale": 40 * shape["head"] ** -0.5}))
    return found


def companies(shape: Shape, dtype: torch.dtype, device: torch.device, exact: bool) -> Iterator[RowGroup]:
    """A sequence alone, between others, and beside huge, NaN and Inf sequences."""
    length = 650 if device.type == "cuda" else 70
    one = story(shape, length, dtype, device, 701, exact)
    others = [story(shape, n, dtype, device, 710 + n, exact) for n in (1, 40, 130)]

    def calls() -> Iterator[Call]:
        yield Call("alone", join(shape, [one], exact), tuple(range(length)))
        for place in range(len(others) + 1):
            before = sum(len(o.q) for o in others[:place])
            yield Call(
                f"place {place}",
                join(shape, [*others[:place], one, *others[place:]], exact),
                tuple(range(before, before + length)),
            )
        for word, value in (("huge", HUGE[dtype]), ("NaN", NAN), ("Inf", float("inf"))):
            bad = Story(*(torch.full_like(t, value) for t in (others[1].q, others[1].k, others[1].v)))
            yield Call(f"between {word} sequences", join(shape, [bad, one, bad], exact), tuple(range(40, 40 + length)))

    yield RowGroup("alone, in company, every place, any neighbour", calls())


def sweep(shape: Shape, dtype: torch.dtype, device: torch.device, exact: bool) -> Iterator[RowGroup]:
    """The first tokens of one sequence, cut at every kind of length."""
    sizes = [*range(1, 140), 255, 256, 257, 511, 512, 513, 1024, 1025] if device.type == "cuda" else [1, 2, 63, 64, 65]
    one = story(shape, sizes[-1], dtype, device, 801, exact)

    def calls() -> Iterator[Call]:
        for size in reversed(sizes):
            cut = Story(one.q[:size], one.k[:size], one.v[:size])
            yield Call(
                f"{size} tokens", join(shape, [cut], exact), tuple(i if i < size else None for i in range(sizes[-1]))
            )

    yield RowGroup("length of the sequence", calls())
