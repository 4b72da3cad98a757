"""Run by test_interpreted.py in a process with TRITON_INTERPRET=1: normed_rotary at several heads per block and warps.

One JSON line: the elements compared, the calls that differ from the contract, and those that do once the unit of the
lane sum is halved.

Every sum of this kernel is of two elements, so the interpreter adds in the GPU's order, and values may be random.
"""

from __future__ import annotations

import json
import warnings
from unittest.mock import patch

import torch
from interpreted import same

from samebits.kernels.ops.lanes import unit_of
from samebits.kernels.ops.normed_rotary import triton as kernel
from samebits.kernels.ops.normed_rotary.inputs import draw
from samebits.kernels.ops.rotary.inputs import CACHE_ROWS
from samebits.kernels.registry import operator

BLOCKINGS = ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (16, 2), (16, 4))
SHAPES = {
    torch.float32: {"heads": 6, "kv_heads": 3, "head": 64, "rotary": 64},
    torch.float16: {"heads": 5, "kv_heads": 1, "head": 128, "rotary": 128},
}


def differing(blockings: tuple[tuple[int, int], ...]) -> tuple[int, list[str]]:
    """(elements compared, calls that differ): 4 tokens, of which two lie outside the cache and one has a NaN."""
    compared, wrong = 0, []
    for dtype, shape in SHAPES.items():
        args = draw(shape, 4, dtype, torch.device("cpu"), 16, False)
        args["k"][3, 0, 1] = float("nan")
        expected = operator("normed_rotary").contract(**args)
        args["positions"][:2] = torch.tensor([-1, CACHE_ROWS])
        for part in expected:
            part[:2] = float("nan")
        for heads, warps in blockings:
            got = kernel.run(**args, blocks=(heads, warps))
            compared += sum(part.numel() for part in expected)
            wrong += [] if same(got, expected) else [f"{dtype}: {heads} heads per block, {warps} warps"]
    return compared, wrong


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    assert {kernel.blocking(tokens) for tokens in range(1, 8193)} <= set(BLOCKINGS), "one in use is not tried here"
    compared, wrong = differing(BLOCKINGS)
    with patch.object(kernel, "unit_of", lambda dtype: unit_of(dtype) // 2):
        _, planted = differing(BLOCKINGS[:1])
    print(json.dumps({"compared": compared, "wrong": wrong, "planted": planted}))
