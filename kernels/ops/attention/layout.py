"""Constants of the attention contract."""

from __future__ import annotations

import math

TILE = 128
"""Keys of a tile: the tile grid stands at absolute key positions 0, 128, 256, ..."""
SEGMENT_TILES = 4
SEGMENT = TILE * SEGMENT_TILES
"""Keys of a segment: segments start at absolute key positions 0, 512, 1024, ..."""
HEAD_SIZES = (64, 128)
MOST_GROUP = 16
"""Query heads per key head, at most."""


def uncovered(head_size: int, heads: int, key_heads: int) -> str:
    """Why the contract does not cover attention of these heads; empty: it does."""
    if head_size not in HEAD_SIZES:
        return f"head size {head_size} is not in the contract; it covers {HEAD_SIZES}"
    if key_heads <= 0 or heads % key_heads:
        return f"{heads} query heads cannot be grouped over {key_heads} key heads"
    if heads // key_heads > MOST_GROUP:
        return f"{heads // key_heads} query heads per key head; the contract covers up to {MOST_GROUP}"
    return ""


def exponent_scale(scale: float) -> float:
    """The factor of a score inside exp2: scale * log2(e), rounded to float32 by its use."""
    return scale * math.log2(math.e)
