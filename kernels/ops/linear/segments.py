"""Into how many segments the contract cuts K: a function of N outputs and K reduced, never of the number of rows."""

from __future__ import annotations

SEGMENTS = 4
NARROW, LONG = 1024, 8192


def segments(N: int, K: int) -> int:
    """S(N, K): 4 where N <= 1024, K >= 8192 and K is a multiple of 64, else 1.

    One chain costs K / 16 dependent matrix instructions. Where the outputs are many, loading the weights takes
    longer than that; where they are few and K is long, the chain alone is twice the time of a product with split-K.
    """
    return SEGMENTS if N <= NARROW and K >= LONG and K % (16 * SEGMENTS) == 0 else 1
