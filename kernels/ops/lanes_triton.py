"""The folds of lanes.py in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def halve(x, A: tl.constexpr, B: tl.constexpr, N: tl.constexpr):
    """Fold the last dim by halves: [A, B, N] -> [A, B]. The order is in the text, whatever layout the compiler picks"""
    if N > 1:
        low, high = tl.split(tl.permute(tl.reshape(x, (A, B, 2, N // 2)), (0, 1, 3, 2)))
        return halve(low + high, A, B, N // 2)
    else:
        return tl.reshape(x, (A, B))


@triton.jit
def halve_pairs(x, A: tl.constexpr, N: tl.constexpr):
    """Fold the last dim by halves: [A * N] of any shape -> [A]. As `halve`, for elements that lie in different threads:
    a sum of two has one order and is a shuffle, where a split would first move the tile through shared memory.
    """
    if N > 1:
        return halve_pairs(tl.sum(tl.reshape(x, (A, 2, N // 2)), axis=1), A, N // 2)
    else:
        return tl.reshape(x, (A,))


@triton.jit
def lane_sum(partial, R: tl.constexpr, LANES: tl.constexpr, UNIT: tl.constexpr):
    """Steps 2 to 4 of the lane sum: [R, LANES * UNIT] -> [R].

    Each lane must be one thread: 16-byte loads, LANES threads per row. Then Triton's reduction is the butterfly of the
    contract (over a warp,
    then over warps), which the gate checks on the machine at hand.
    """
    return tl.sum(halve(tl.reshape(partial, (R, LANES, UNIT)), R, LANES, UNIT), axis=1)


@triton.jit
def fold_lanes(x, LANES: tl.constexpr):
    """Steps 3 and 4 with the order written out: [LANES] -> scalar, for any layout. Meant for a few dozen lanes and one
    warp.
    """
    WARP: tl.constexpr = 32 if LANES > 32 else LANES
    warps = halve(tl.reshape(x, (1, LANES // WARP, WARP)), 1, LANES // WARP, WARP)
    return tl.sum(halve(tl.reshape(warps, (1, 1, LANES // WARP)), 1, 1, LANES // WARP))
