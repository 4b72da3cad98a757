"""Calls of paged attention. T query tokens, H query heads, G key heads, D head size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from samebits.kernels.ops.attention.layout import SEGMENT
from samebits.kernels.ops.rows import HUGE, Args, Call, Case, RowGroup, Shape


def _shape(heads: int, key_heads: int, head: int, page: int = 16) -> Shape:
    return {"heads": heads, "key_heads": key_heads, "head": head, "page": page}


SHAPES: tuple[Shape, ...] = (
    *(
        _shape(32, 8, 128),
        _shape(16, 8, 128),
        _shape(32, 8, 64),
        _shape(8, 8, 128),
        _shape(8, 1, 64),
        _shape(12, 4, 128),
    ),
    *(_shape(10, 2, 64), _shape(12, 2, 128), _shape(14, 2, 64), _shape(32, 8, 128, 64)),
)
SMALL_SHAPES: tuple[Shape, ...] = (_shape(2, 1, 64), _shape(4, 2, 64, 32))
DTYPES = (torch.bfloat16, torch.float16)
ROWS = ("q",)
GRADS = ()
NAN = float("nan")


@dataclass(slots=True, frozen=True)
class Story:
    """One sequence: its queries [T, H, D], keys and values [T, G, D]."""

    q: Tensor
    k: Tensor
    v: Tensor


Part = tuple[Story, int, int]
"""(sequence, first query token, one past the last): the keys before the first are in the cache already."""


def story(shape: Shape, length: int, dtype: torch.dtype, device: torch.device, seed: int, exact: bool) -> Story:
    """A sequence of `length` tokens. exact: one-hot queries and small integers, whose sums are the same in every
    order."""
    rng = torch.Generator(device=device).manual_seed(seed)
    heads, key_heads, head = shape["heads"], shape["key_heads"], shape["head"]
    if exact:
        q = torch.zeros(length, heads, head, device=device)
        q.scatter_(2, torch.randint(0, head, (length, heads, 1), generator=rng, device=device), 1.0)
        k = torch.randint(-6, 1, (length, key_heads, head), generator=rng, device=device)
        v = torch.randint(-4, 5, (length, key_heads, head), generator=rng, device=device)
    else:
        q, k, v = (torch.randn(length, n, head, generator=rng, device=device) for n in (heads, key_heads, key_heads))
    return Story(q.to(dtype), k.to(dtype), v.to(dtype))


def assemble(shape: Shape, parts: Sequence[Part], seed: int, exact: bool, rest: float = NAN) -> Args:
    """One call: the parts' keys scattered over pages in random order; every slot that no sequence owns holds `rest`."""
    first = parts[0][0]
    device, page = first.q.device, shape["page"]
    counts = [-(-stop // page) for _, _, stop in parts]
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(sum(counts) + 2, generator=rng).to(device)
    table = torch.zeros((len(parts), max(counts)), dtype=torch.int32, device=device)
    caches = [
        torch.full((len(order) * page, shape["key_heads"], shape["head"]), rest, dtype=first.k.dtype, device=device)
        for _ in range(2)
    ]
    used = 0
    for b, ((one, _, stop), count) in enumerate(zip(parts, counts, strict=True)):
        pages = order[used : used + count]
        used += count
        table[b, :count] = pages
        slots = (pages[:, None] * page + torch.arange(page, device=device)).flatten()[:stop]
        for cache, source in zip(caches, (one.k, one.v), strict=True):
            cache[slots] = source[:stop]
    lengths = [stop - start for _, start, stop in parts]
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    k_cache, v_cache = (c.view(len(order), page, shape["key_heads"], shape["head"]) for c in caches)
    return {
        "q": torch.cat([one.q[start:stop] for one, start, stop in parts]),
        "k_cache": k_cache,
        "v_cache": v_cache,
        "block_table": table,
        "cu_seqlens_q": bounds.to(device),
        "seq_lens": torch.tensor([stop for _, _, stop in parts], dtype=torch.int32, device=device),
        "max_query_len": max(lengths),
        "max_seq_len": max(stop for _, _, stop in parts),
        "scale": 0.6931471805599453 if exact else shape["head"] ** -0.5,
    }


def draw(shape: Shape, rows: int, dtype: torch.dtype, device: torch.device, seed: int, exact: bool) -> Args:
    """`rows` sequences in decode, of 1 to 700 tokens."""
    lengths = [1 + (seed * 131 + i * 97) % (700 if device.type == "cuda" else 200) for i in range(rows)]
    parts = [(story(shape, n, dtype, device, seed + i, exact), n - 1, n) for i, n in enumerate(lengths)]
    return assemble(shape, parts, seed, exact)


def cases(shape: Shape, dtype: torch.dtype, device: torch.device, exact: bool) -> list[Case]:
    """Decode, prefill, chunks and a mix at the edges of tiles and segments; one token; large scores; equal keys;
    interleaved caches."""

    def parts(*spans: tuple[int, int]) -> list[Part]:
        return [(story(shape, stop, dtype, device, 7 * stop + start, exact), start, stop) for start, stop in spans]

    large = device.type == "cuda"
    spans = {
        "one token": [(0, 1)],
        "decode at edges": [
            (n - 1, n) for n in (1, 2, 127, 128, 129, SEGMENT, SEGMENT + 1, *((4096, 4097) if large else ()))
        ],
        "prefill": [(0, 33), (0, 130), *([(0, SEGMENT + 1), (0, 1500)] if large else ())],
        "chunk behind a cached prefix": [(100, 140), *([(SEGMENT, SEGMENT + 300), (1000, 1001)] if large else ())],
        "mixed": [(69, 70), (0, 40), (20, 22), (129, 130)],
    }
    found = [Case(name, assemble(shape, parts(*some), 3, exact)) for name, some in spans.items()]
    wide = assemble(shape, parts((99, 100), (0, 20)), 4, exact)
    both = torch.stack((wide["k_cache"], wide["v_cache"]), 1)
    found.append(Case("keys and values interleaved by page", {**wide, "k_cache": both[:, 0], "v_cache": both[:, 1]}))
    if not exact:
        found.append(Case("large scores", {**wide, "scale": wide["scale"] * 40}))
    same = [Story(one.q, torch.zeros_like(one.k) + one.k[:1], one.v) for one, _, _ in parts((0, 150))]
    found.append(Case("equal keys", assemble(shape, [(same[0], 100, 150)], 5, exact)))
    return found


def companies(shape: Shape, dtype: torch.dtype, device: torch.device, exact: bool) -> Iterator[RowGroup]:
    """A decode row alone, among other sequences, at every place, beside prefills, and beside huge, NaN and Inf
    sequences."""
    length = 1100 if device.type == "cuda" else 140
    one = (story(shape, length, dtype, device, 201, exact), length - 1, length)
    others = [(story(shape, n, dtype, device, 300 + n, exact), n - 1, n) for n in (1, 90, 129, 260)]
    prefills = (1, 2, 3, 9, 10, 17, 65, *((129, 300, 1024, 2048) if device.type == "cuda" else ()))

    def calls() -> Iterator[Call]:
        yield Call("alone", assemble(shape, [one], 1, exact), (0,))
        for place in range(len(others) + 1):
            yield Call(
                f"place {place} of 5",
                assemble(shape, [*others[:place], one, *others[place:]], 2 + place, exact),
                (place,),
            )
        for n in prefills:
            beside = (story(shape, n, dtype, device, 400 + n, exact), 0, n)
            yield Call(f"behind a prefill of {n}", assemble(shape, [beside, one], 10, exact), (n,))
            yield Call(f"before a prefill of {n}", assemble(shape, [one, beside], 11, exact), (0,))
        for word, value in (("huge", HUGE[dtype]), ("NaN", NAN), ("Inf", float("inf"))):
            bad = Story(*(torch.full_like(t, value) for t in (others[2][0].q, others[2][0].k, others[2][0].v)))
            yield Call(
                f"beside a {word} sequence",
                assemble(shape, [(bad, 128, 129), one, (bad, 0, 40)], 12, exact, value),
                (1,),
            )

    yield RowGroup("alone, in company, every place, any neighbour, beside prefills of 1 to 2048 tokens", calls())


def sweep(shape: Shape, dtype: torch.dtype, device: torch.device, exact: bool) -> Iterator[RowGroup]:
    """The same decode rows in batches of 1 to 256 (16 on CPU)."""
    large = device.type == "cuda"
    sizes = [*range(1, 41), 63, 64, 65, 127, 128, 129, 255, 256] if large else [1, 2, 3, 5, 16]
    parts = [
        (story(shape, 1 + i * 37 % 900 if large else 1 + i * 11, dtype, device, 500 + i, exact))
        for i in range(sizes[-1])
    ]

    def calls() -> Iterator[Call]:
        for size in reversed(sizes):
            some: list[Part] = [(one, len(one.q) - 1, len(one.q)) for one in parts[:size]]
            yield Call(
                f"batch {size}",
                assemble(shape, some, size, exact),
                tuple(i if i < size else None for i in range(sizes[-1])),
            )

    yield RowGroup("batch size", calls())


def paths(shape: Shape, dtype: torch.dtype, device: torch.device, exact: bool) -> Iterator[RowGroup]:
    """Every token of one sequence as prefill, as decode, in chunks, behind a cached prefix, and mixed with others."""
    large = device.type == "cuda"
    length = 2 * SEGMENT + 76 if large else 140
    one = story(shape, length, dtype, device, 601, exact)
    other = story(shape, 260 if large else 40, dtype, device, 602, exact)
    edges = {e + s for e in (0, 128, SEGMENT, 2 * SEGMENT, length) for s in (-2, -1, 0, 1)}
    singles = sorted(e for e in edges | set(range(0, length, 97)) if 0 <= e < length)

    def rows(start: int, stop: int, shift: int = 0) -> tuple[int | None, ...]:
        return tuple(i - start + shift if start <= i < stop else None for i in range(length))

    def calls() -> Iterator[Call]:
        yield Call("prefill", assemble(shape, [(one, 0, length)], 1, exact), rows(0, length))
        for i in singles:
            yield Call(f"decode of token {i}", assemble(shape, [(one, i, i + 1)], 2, exact), rows(i, i + 1))
        for chunk in (2, 3, 16, 100, 128, 500) if large else (3, 64):
            for start in range(0, length, chunk) if chunk > 64 else range(0, length, chunk * 13):
                stop = min(start + chunk, length)
                yield Call(
                    f"chunk {start} to {stop}", assemble(shape, [(one, start, stop)], 3, exact), rows(start, stop)
                )
        for start in (16, 100, SEGMENT, SEGMENT + 1) if large else (16,):
            yield Call(
                f"behind {start} cached tokens", assemble(shape, [(one, start, length)], 4, exact), rows(start, length)
            )
        mixed: list[Part] = [(other, 0, len(other.q)), (one, length - 30, length), (other, 4, 5)]
        yield Call(
            "mixed with a prefill and a decode",
            assemble(shape, mixed, 5, exact),
            rows(length - 30, length, len(other.q)),
        )

    yield RowGroup("prefill, decode, chunks, cached prefix, mixed", calls())
