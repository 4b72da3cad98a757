"""The order of a CUDA block's sum, written as tensors, is the one of its threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from samebits.tools.diff.causes.observation import same_bits
from samebits.tools.diff.causes.reductions import VECTOR, WARP, block_sum, row_sum, row_sum_options


def by_threads(row: np.ndarray, threads: int, together: int) -> np.float32:
    """The sum as each thread does it, in float32."""
    sums = []
    for thread in range(threads):
        total = np.float32(0)
        for start in range(thread * VECTOR, len(row), threads * VECTOR):
            for at in range(start, start + VECTOR, together):
                term = row[at] if together == 1 else np.float32(row[at] + row[at + 1])
                total = np.float32(total + term)
        sums.append(total)
    warps = []
    for first in range(0, threads, WARP):
        lanes = sums[first : first + WARP]
        lanes += [np.float32(0)] * (WARP - len(lanes))
        apart = 1
        while apart < WARP:
            lanes = [np.float32(a + b) for a, b in zip(lanes, lanes[apart:] + lanes[:apart], strict=True)]
            apart *= 2
        warps.append(lanes[0])
    total = warps[0]
    for warp in warps[1:]:
        total = np.float32(total + warp)
    return np.float32(total)


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize(("size", "threads"), [(128, 16), (2048, 256), (4096, 256), (4096, 512)])
def test_a_block_sum_adds_as_its_threads_do(size: int, threads: int, together: int) -> None:
    x = torch.randn(4, size, generator=torch.Generator().manual_seed(size)).square()
    truth = torch.tensor([[float(by_threads(row, threads, together))] for row in x.numpy()])
    assert same_bits(block_sum(x, threads, together), truth)
    # Control: other orders give other bits.
    other = [block_sum(x, threads, 3 - together), row_sum(x, "native"), row_sum(x, "ascending")]
    assert any(not same_bits(out, truth) for out in other)


def test_block_orders_are_tried_on_an_accelerator_only() -> None:
    assert not [option for option in row_sum_options(2048) if option.name.startswith(("block:", "block2:"))]
    assert [option.name for option in row_sum_options(2048, "cuda")][1:3] == ["block:256", "block2:256"]
