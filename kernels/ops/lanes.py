"""The lane sum: the one order in which samebits adds up a row.

A row is cut into units of `unit` neighbours (16 bytes of the input dtype: one vector load). Unit u belongs to lane u %
lanes, so a lane owns
every lanes-th unit. The order, each step elementwise in float32 with separate multiplications and additions:

1. partial sum (lane, j) adds element j of the lane's units, ascending, starting at +0;
2. the `unit` partial sums of a lane are folded by halves: i with i + unit/2, then i + unit/4, ...;
3. the lanes of each group of 32 neighbours are folded by halves (16, 8, 4, 2, 1);
4. the groups are folded by halves.

That is the order of a butterfly over one warp and then over warps, so a GPU kernel with one lane per thread gets it for
nothing, whatever
the number of rows per block; and it can be written down in any language.
"""

from __future__ import annotations

import torch

WARP = 32


def next_power_of_two(n: int) -> int:
    """Smallest power of two >= n."""
    return 1 << (n - 1).bit_length()


def unit_of(dtype: torch.dtype) -> int:
    """Elements of one unit: 16 bytes."""
    return 16 // dtype.itemsize


def lanes_of(width: int, unit: int, most: int) -> int:
    """Lanes of a row of `width` elements: a function of the width and dtype alone, never of the number of rows."""
    return min(next_power_of_two(-(-width // unit)), most)


def halve(x: torch.Tensor) -> torch.Tensor:
    """Fold the last dim (a power of two) by halves: [..., n] -> [...]."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def fold_lanes(x: torch.Tensor) -> torch.Tensor:
    """Steps 3 and 4: [..., lanes] -> [...]."""
    group = min(x.shape[-1], WARP)
    return halve(halve(x.unflatten(-1, (-1, group))))


def lane_sum(x: torch.Tensor, unit: int, lanes: int) -> torch.Tensor:
    """Sum of the last dim in the order above.

    Args:
        x: float32 [..., width].

    Returns:
        float32 [...].
    """
    step = unit * lanes
    passes = -(-x.shape[-1] // step)
    x = torch.nn.functional.pad(x, (0, passes * step - x.shape[-1])).unflatten(-1, (passes, lanes, unit))
    partial = torch.zeros_like(x[..., 0, :, :])
    for p in range(passes):
        partial = partial + x[..., p, :, :]
    return fold_lanes(halve(partial))


def sqrt(x: torch.Tensor) -> torch.Tensor:
    """Correctly rounded float32 square root. torch.sqrt on CPU is not (0.6% of values are one ulp off with MKL);
    through float64 it is.
    """
    return torch.sqrt(x.double()).float()


def aligned(x: torch.Tensor) -> torch.Tensor:
    """x [..., D], or a copy whose rows start at multiples of 16 elements and 16 bytes and end in zeros: fast kernels
    need one unit per load.
    """
    sound = (
        x.data_ptr() % 16 == 0
        and x.shape[-1] % 16 == 0
        and x.stride(-1) == 1
        and all(n % 16 == 0 for n in x.stride()[:-1])
    )
    return x if sound else torch.nn.functional.pad(x, (0, -x.shape[-1] % 16)).contiguous()
