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
Ring = tuple[int, ...]
HOPPER: tuple[Ring, ...] = (
    (2, 128, 64, 6, 16, 0, 0), (2, 128, 64, 6, 8, 2, 0), (2, 256, 64, 3, 8, 0, 1), (2, 256, 64, 3, 8, 1, 1),
    (2, 64, 64, 8, 8, 1, 0), (1, 128, 64, 8, 8, 0, 0),
)  # fmt: skip
"""The fields of a HopperConfig, where K is in segments."""
CHAIN_HOPPER: tuple[Ring, ...] = (
    (1, 16, 256, 5), (1, 16, 512, 2), (1, 8, 256, 5), (1, 32, 256, 4), (1, 32, 128, 8), (1, 8, 128, 10),
    (1, 64, 128, 6), (2, 32, 128, 5),
)  # fmt: skip


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
    if M <= 128:
        few = JOIN_FEW[:1] if N <= 1024 else ()
        return {"join": (*few, *JOIN_SOME), "join tma": JOIN_SOME_TMA, "split": SPLIT[1:]}
    return {}


def chains(M: int) -> list[list[Any]]:
    """Entries for few outputs where K is one segment: of each kind in turn."""
    few, by_descriptor = (CHAIN_FEW, CHAIN_FEW_TMA) if M <= 16 else (CHAIN_SOME, CHAIN_TMA)
    kinds: tuple[list[list[Any]], ...] = (
        [["triton", *map(int, tile)] for tile in few],
        [["walk tma", *map(int, tile)] for tile in by_descriptor],
        [["hopper", *ring, 8, 0, 0] for ring in CHAIN_HOPPER],
    )
    return [entry for turn in zip_longest(*kinds) for entry in turn if entry is not None]


def entries(M: int, N: int, K: int) -> list[list[Any]]:
    """Table entries worth a try, those of cuBLASLt aside."""
    if segments(K) == 1:
        narrow = chains(M) if M <= 1024 and N <= 2048 else []
        rest = [["triton", *map(int, tile)] for tile in tiles(M, N)]
        return narrow + [entry for entry in rest if entry not in narrow]
    found: list[list[Any]] = []
    for way, some in joined(M, N).items():
        found += [[way, *map(int, tile)] for tile in some]
    return found + ([["hopper", *ring] for ring in HOPPER] if M >= 64 else [])


def whole(K: int) -> bool:
    """Whether all segments are equally long, as a batch of products wants them."""
    return segments(K) > 1 and segments(K) * length(K) == K
