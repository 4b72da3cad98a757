"""The lane sum of lanes.py in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def halve(x, A: tl.constexpr, B: tl.constexpr, N: tl.constexpr):
    """Fold the last dim by halves: [A, B, N] -> [A, B]. The order is in the text, whatever layout the compiler picks."""
    if N > 1:
        low, high = tl.split(tl.permute(tl.reshape(x, (A, B, 2, N // 2)), (0, 1, 3, 2)))
        return halve(low + high, A, B, N // 2)
    else:
        return tl.reshape(x, (A, B))


@triton.jit
def fold_lanes(x, R: tl.constexpr, LANES: tl.constexpr):
    """Warps of 32 by halves, then the warps by halves: [R, LANES] -> [R]; the order is in the text."""
    WARP: tl.constexpr = 32 if LANES > 32 else LANES
    warps = halve(tl.reshape(x, (R, LANES // WARP, WARP)), R, LANES // WARP, WARP)
    return tl.reshape(halve(tl.reshape(warps, (R, 1, LANES // WARP)), R, 1, LANES // WARP), (R,))


@triton.jit
def lane_sum(partial, R: tl.constexpr, LANES: tl.constexpr, UNIT: tl.constexpr, IN_WARP: tl.constexpr):
    """Steps 2 to 4 of the lane sum: [R, LANES * UNIT] -> [R].

    IN_WARP: each lane is one thread (16-byte loads, LANES threads per row), so that Triton's reduction is the same butterfly; else
    the order is written out, which is slower and holds for any layout. The gate compares both.
    """
    lanes = halve(tl.reshape(partial, (R, LANES, UNIT)), R, LANES, UNIT)
    if IN_WARP:
        return tl.sum(lanes, axis=1)
    else:
        return fold_lanes(lanes, R, LANES)
