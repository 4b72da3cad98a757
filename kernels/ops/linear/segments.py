"""Into how many segments the contract cuts K: a function of K alone, so that a weight merged with others or sharded by
outputs keeps its bits."""

from __future__ import annotations

LONG, SEGMENTS, UNIT = 8192, 4, 128


def segments(K: int) -> int:
    """S(K): 4 where K > 8192, else 1.

    One chain costs K / 16 dependent matrix instructions. Where K is long and outputs are few, as in a shard of a down
    projection, the chain alone is twice the time of a product with split-K.
    """
    return SEGMENTS if K > LONG else 1


def length(K: int) -> int:
    """L(K): K / S rounded up to a multiple of 128; the last segment holds what is left, at least one element.

    Segments are whole K blocks of a kernel, also where K has no good divisor; one segment is K itself.
    """
    return K if K <= LONG else -(-K // (SEGMENTS * UNIT)) * UNIT
