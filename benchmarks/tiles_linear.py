"""What tune_linear.py tries: tiles as (tokens, outputs, K block, warps, stages, weights as the left operand)."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from samebits.kernels.ops.linear.segments import length, segments

Tile = tuple[int, int, int, int, int, bool]
NARROW: tuple[Tile, ...] = (
    (8, 16, 512, 1, 3, True), (8, 16, 512, 2, 3, True), (8, 16, 512, 4, 3, True), (8, 16, 512, 1, 4, True),
    (8, 32, 256, 2, 4, True), (8, 32, 512, 4, 3, True), (8, 64, 256, 4, 4, True), (8, 64, 128, 4, 5, True),
    (8, 16, 1024, 2, 3, True), (16, 8, 512, 1, 4, False), (16, 8, 1024, 1, 3, False), (16, 8, 512, 2, 4, False),
    (16, 16, 512, 1, 3, False), (16, 16, 512, 2, 3, False), (16, 16, 256, 1, 5, False), (16, 16, 1024, 2, 3, False),
    (16, 16, 512, 2, 4, False), (16, 32, 256, 2, 4, False), (16, 32, 512, 4, 3, False), (16, 64, 128, 4, 5, False),
    (16, 16, 512, 2, 3, True), (16, 32, 256, 2, 4, True), (16, 64, 256, 4, 4, True), (16, 64, 128, 4, 6, True),
    (16, 128, 128, 4, 4, True), (16, 16, 1024, 4, 3, False), (16, 16, 1024, 1, 3, False), (8, 16, 1024, 4, 3, True),
    (16, 16, 1024, 2, 3, True), (16, 16, 512, 4, 4, True), (16, 16, 512, 2, 4, True), (16, 16, 512, 4, 4, False),
    (8, 16, 512, 2, 4, True),
)  # fmt: skip
MIDDLE: tuple[Tile, ...] = (
    (32, 16, 256, 2, 4, False), (32, 16, 512, 2, 3, False), (32, 32, 256, 2, 4, False), (32, 32, 256, 4, 4, False),
    (32, 64, 128, 4, 5, False), (32, 64, 256, 4, 3, True), (32, 64, 128, 4, 5, True), (32, 128, 128, 4, 4, True),
    (16, 16, 512, 2, 3, False), (32, 8, 512, 2, 4, False), (64, 16, 256, 4, 4, False), (64, 16, 128, 4, 6, False),
    (64, 32, 256, 4, 4, False), (64, 32, 128, 4, 6, False), (64, 64, 128, 4, 5, False), (64, 64, 128, 4, 5, True),
    (64, 128, 128, 4, 3, True), (64, 128, 64, 4, 5, True), (64, 64, 64, 4, 6, False), (64, 128, 128, 4, 3, False),
    (64, 16, 512, 4, 3, False), (16, 16, 1024, 4, 3, False), (32, 16, 512, 4, 4, False), (32, 16, 1024, 4, 2, False),
    (64, 16, 256, 4, 5, False),
)  # fmt: skip
SLIM: tuple[Tile, ...] = (
    (32, 16, 512, 4, 3, False), (32, 16, 256, 4, 5, False), (64, 16, 512, 4, 2, False), (16, 16, 1024, 4, 3, False),
    (16, 16, 512, 4, 3, False), (32, 16, 256, 4, 6, False), (32, 16, 1024, 4, 2, False), (64, 8, 512, 4, 3, False),
    (32, 8, 512, 1, 3, False), (32, 8, 512, 4, 4, False), (16, 16, 512, 4, 4, True), (16, 32, 512, 4, 3, True),
    (32, 16, 512, 2, 3, True), (32, 16, 256, 4, 4, False), (16, 16, 512, 4, 4, False), (16, 16, 256, 2, 6, False),
    (16, 16, 256, 4, 6, False), (32, 16, 256, 8, 5, False), (32, 16, 128, 4, 8, False), (32, 16, 512, 8, 3, False),
    (16, 64, 256, 4, 4, True), (32, 64, 256, 4, 3, True), (16, 64, 128, 4, 8, True),
)  # fmt: skip
"""For outputs so few that only small tiles fill the GPU, at any M."""
WIDE: tuple[Tile, ...] = (
    (128, 32, 128, 4, 5, False), (128, 64, 128, 4, 4, False), (128, 64, 64, 4, 6, False), (128, 64, 64, 8, 6, False),
    (128, 128, 64, 8, 4, False), (128, 128, 64, 4, 4, False), (128, 128, 64, 4, 4, True),
    (128, 256, 64, 8, 3, False), (64, 256, 64, 4, 4, False), (128, 256, 64, 8, 4, True), (64, 256, 64, 8, 4, False),
)  # fmt: skip

# Where K is in segments; TMA: loaded by descriptor.
JOIN_FEW: tuple[Tile, ...] = (
    (16, 16, 512, 2, 3, False), (16, 16, 512, 4, 3, False), (16, 16, 512, 1, 3, False), (16, 16, 256, 2, 5, False),
    (16, 16, 1024, 2, 2, False), (16, 16, 1024, 4, 3, False), (16, 32, 256, 2, 4, False), (16, 32, 512, 4, 3, False),
    (8, 16, 512, 2, 3, True), (8, 32, 256, 2, 4, True), (8, 32, 512, 4, 3, True), (8, 64, 256, 4, 3, True),
    (8, 64, 128, 4, 5, True), (16, 64, 128, 4, 4, True), (16, 64, 128, 4, 5, True), (16, 64, 128, 4, 6, True),
    (16, 64, 256, 4, 3, True), (16, 128, 128, 4, 4, True), (16, 128, 128, 8, 4, True),
)  # fmt: skip
JOIN_FEW_TMA: tuple[Tile, ...] = (
    (8, 64, 256, 4, 3, True), (16, 64, 128, 4, 5, True), (16, 64, 256, 4, 3, True), (16, 128, 128, 4, 4, True),
    (16, 64, 128, 4, 6, True), (16, 128, 128, 8, 4, True),
)  # fmt: skip
JOIN_SOME: tuple[Tile, ...] = (
    (16, 64, 128, 4, 5, True), (16, 64, 256, 4, 3, True), (32, 64, 128, 4, 4, True), (32, 64, 128, 4, 5, True),
    (32, 64, 256, 4, 3, True), (64, 64, 128, 4, 3, True), (64, 64, 128, 4, 5, True), (64, 128, 128, 4, 3, True),
    (32, 128, 128, 4, 4, True), (64, 32, 128, 4, 4, False), (64, 64, 128, 4, 4, False),
)  # fmt: skip
JOIN_SOME_TMA: tuple[Tile, ...] = (
    (32, 64, 128, 4, 4, True), (64, 64, 128, 4, 3, True), (64, 64, 128, 4, 5, True), (64, 128, 128, 4, 3, True),
    (32, 128, 128, 4, 4, True), (64, 32, 128, 4, 4, False), (64, 64, 128, 4, 4, False), (64, 128, 64, 4, 5, True),
    (64, 128, 128, 8, 4, True),
)  # fmt: skip
JOIN_MORE_TMA: tuple[Tile, ...] = (
    (64, 32, 128, 4, 4, False), (64, 64, 128, 4, 4, False), (128, 64, 64, 4, 5, False), (128, 64, 128, 4, 4, False),
    (128, 128, 64, 8, 4, False), (128, 128, 128, 8, 3, False), (128, 64, 128, 8, 4, False), (64, 128, 128, 4, 3, True),
    (128, 64, 64, 4, 4, False), (128, 64, 64, 8, 4, False), (128, 64, 64, 4, 4, True),
)  # fmt: skip
WALK_TMA: tuple[Tile, ...] = (
    (128, 256, 64, 8, 3, False), (128, 256, 64, 8, 4, False), (256, 128, 64, 8, 4, False), (128, 128, 64, 8, 4, False),
    (128, 128, 128, 8, 3, False), (128, 128, 64, 4, 4, False),
)  # fmt: skip
SPLIT: tuple[Tile, ...] = ((16, 16, 512, 2, 3, False), (16, 64, 128, 4, 5, True))
"""The same with a second launch that folds: what the one launch must beat."""


# Where K is one segment and few outputs leave all to the length of the chain: tried first.
CHAIN_FEW: tuple[Tile, ...] = (
    (8, 16, 512, 2, 3, True), (16, 64, 128, 4, 5, True), (16, 16, 1024, 2, 3, False), (16, 32, 256, 4, 4, False),
    (8, 32, 512, 4, 3, True), (8, 32, 512, 2, 3, True), (16, 64, 128, 4, 6, True), (16, 32, 256, 4, 4, True),
    (8, 16, 1024, 2, 3, True),
)  # fmt: skip
CHAIN_FEW_TMA: tuple[Tile, ...] = (
    (16, 64, 128, 4, 5, True), (8, 64, 256, 4, 3, True), (16, 32, 256, 4, 4, False), (16, 64, 256, 4, 4, True),
)  # fmt: skip
CHAIN_SOME: tuple[Tile, ...] = (
    (16, 64, 128, 4, 5, True), (64, 16, 256, 4, 4, False), (32, 32, 256, 4, 4, False), (64, 16, 128, 4, 6, False),
    (32, 64, 128, 4, 5, True), (32, 16, 512, 4, 3, False), (32, 16, 256, 4, 5, False),
)  # fmt: skip
CHAIN_TMA: tuple[Tile, ...] = (
    (32, 16, 256, 4, 5, False), (64, 16, 128, 4, 6, False), (32, 32, 128, 4, 6, False), (64, 32, 128, 4, 5, False),
    (32, 64, 128, 4, 5, True), (64, 16, 256, 4, 4, False), (16, 64, 128, 4, 6, True), (32, 64, 128, 4, 5, False),
    (128, 32, 64, 4, 6, False),
)  # fmt: skip
MULTIPROCESSORS, SHARED_BYTES = 132, 217 << 10
HOPPER = (
    *((consumers, n, k) for consumers in (1, 2) for n in (64, 128) for k in (64, 128)),
    *((1, 32, 128), (1, 32, 256), (2, 32, 128), (1, 256, 64), (2, 256, 64), (3, 128, 64), (4, 128, 64), (4, 64, 64)),
)
"""Of hopper.py: warpgroups of 64 tokens, outputs, K block."""
SLIM_HOPPER = (
    (1, 8, 256, 5), (1, 16, 256, 5), (1, 16, 512, 2), (1, 8, 128, 10), (1, 32, 128, 8), (1, 32, 256, 4),
    (1, 64, 128, 6), (2, 32, 128, 5),
)  # fmt: skip
"""With stages: where K is one segment, for few outputs at middle numbers of rows."""
BIG_HOPPER = (
    (2, 256, 64, 4, 0, 1, 8, 2, 1, 0), (2, 256, 64, 4, 0, 1, 16, 0, 1, 0), (2, 256, 64, 3, 0, 1, 8, 1, 1, 1),
    (2, 256, 64, 3, 0, 1, 8, 0, 1, 1), (2, 256, 32, 6, 0, 1, 8, 2, 1, 1), (2, 256, 64, 4, 0, 0, 8, 2, 1, 0),
    (3, 128, 64, 5, 0, 2, 8, 1, 1, 0), (4, 128, 64, 4, 0, 0, 8, 1, 1, 0),
)  # fmt: skip
"""All numbers: for outputs so many that the tensor cores are busy throughout."""
MOST_HOPPER = 9


def hopper(M: int, N: int, K: int) -> list[list[Any]]:
    """Entries of the Hopper kernel that an estimate of its waves puts first: tiles and spans that fill the GPU."""
    if segments(K) == 1:
        return [["hopper", *tile, 0, 2, 8, 0, 1, 0] for tile in SLIM_HOPPER]
    S, found = segments(K), []
    for consumers, n, k in HOPPER:
        rows = 64 * consumers
        if consumers > 1 and rows >= 2 * M:
            continue
        stages = min(8, SHARED_BYTES // (2 * k * (rows + n)))
        all_tiles = -(-M // rows) * -(-N // n)
        for span in (0, 1, 2):
            waves = -(-all_tiles * (S // (span or S)) // MULTIPROCESSORS)
            # A step is bound by the tensor cores or by what it loads; sums that are stored cost some steps.
            step = max(rows * n / 32768, (rows + n) / 512) * (1.0 if k == 64 else 0.97)
            cost = waves * (step * (K / 64 * (span or S) / S) + (12 * step + 6 if span else 0))
            keep = 2 if not span and (n <= 64 or (n <= 128 and consumers in (2, 3))) else 0
            if not (span and M > 2048):
                found.append((cost, [consumers, n, k, stages, span, keep, 8, 0, 1, 0]))
    best = [numbers for _, numbers in sorted(found)[:MOST_HOPPER]]
    for numbers in best:
        # Warpgroups apart, so that one multiplies while the other folds.
        if numbers[:3] in ([2, 128, 64], [2, 256, 64]) and numbers[4] != 1:
            best = [*best, [*numbers[:7], 2, 1, 0]]
    if M <= 128:
        best.append([1, 64, 64, 6, 1, 0, 8, 0, 2, 0])  # two programs to a multiprocessor
    wide = BIG_HOPPER if M * N >= 1 << 22 else ()
    return [["hopper", *numbers] for numbers in dict.fromkeys(map(tuple, [*wide, *best]))]


def tiles(M: int, N: int) -> list[Tile]:
    """Triton's where K is one segment; large shapes are left to cuBLASLt."""
    found = NARROW if M <= 16 else MIDDLE if M <= 64 else MIDDLE + WIDE if M <= 256 else WIDE + MIDDLE[10:15]
    if N <= 2048 and M <= 1024:
        found += tuple(c for c in NARROW + SLIM if c not in found)
    if N > 8192:
        found = tuple(c for c in found if c[1] >= 16)
    if (M > 64 and N > 16384) or (M > 1024 and N % 8 == 0 and N > 1024):
        found = ()
    return list(dict.fromkeys(found))


def joined(M: int, N: int) -> dict[str, tuple[Tile, ...]]:
    """Triton's where K is in segments, by way."""
    if M <= 16:
        return {"join": JOIN_FEW, "join tma": JOIN_FEW_TMA, "split": SPLIT}
    if M <= 64:
        few = JOIN_FEW[:1] if N <= 1024 else ()
        return {"join": (*few, *JOIN_SOME), "join tma": JOIN_SOME_TMA, "split": SPLIT[1:]}
    if M <= 128:
        return {"join": JOIN_SOME[:2] if N <= 1024 else (), "join tma": JOIN_MORE_TMA, "split tma": JOIN_MORE_TMA[:2]}
    if M <= 1024 and (M <= 512 or N <= 1024):
        return {"join tma": JOIN_MORE_TMA[2:8], "walk tma": WALK_TMA[:4] if M * N >= 1 << 20 else ()}
    return {"walk tma": WALK_TMA}


def chains(M: int, N: int, K: int) -> list[list[Any]]:
    """Entries for few outputs where K is one segment: of each kind in turn."""
    few, by_descriptor = (CHAIN_FEW, CHAIN_FEW_TMA) if M <= 16 else (CHAIN_SOME, CHAIN_TMA)
    kinds: tuple[list[list[Any]], ...] = (
        [["triton", *map(int, tile)] for tile in few],
        [["walk tma", *map(int, tile)] for tile in by_descriptor],
        hopper(M, N, K),
    )
    return [entry for turn in zip_longest(*kinds) for entry in turn if entry is not None]


def entries(M: int, N: int, K: int) -> list[list[Any]]:
    """Table entries worth a try, those of cuBLASLt aside."""
    if segments(K) == 1:
        narrow = chains(M, N, K) if M <= 1024 and N <= 2048 else []
        rest = [["triton", *map(int, tile)] for tile in tiles(M, N)]
        return narrow + [entry for entry in rest if entry not in narrow]
    found: list[list[Any]] = []
    for way, some in joined(M, N).items():
        found += [[way, *map(int, tile)] for tile in some]
    return found + (hopper(M, N, K) if M >= 64 else [])


def whole(K: int) -> bool:
    """Whether all segments are equally long, as a batch of products wants them."""
    return segments(K) > 1 and segments(K) * length(K) == K
