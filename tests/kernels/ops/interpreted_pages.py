"""Run by test_interpreted.py in a process with TRITON_INTERPRET=1: normed_rotary into the pages of a cache.

One JSON line: the elements compared, the calls after which results or any byte of the cache differ from the plain
write, and those that do once a token's slot is another.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import replace

import torch

from samebits.kernels.ops.normed_rotary import triton as kernel
from samebits.kernels.ops.normed_rotary.inputs import draw
from samebits.kernels.ops.normed_rotary.op import body
from samebits.kernels.ops.normed_rotary.pages import Pages
from samebits.kernels.ops.rows import Args

BLOCKINGS = ((4, 1), (2, 1))
SHAPES = (
    {"heads": 2, "kv_heads": 1, "head": 128, "rotary": 128},
    {"heads": 5, "kv_heads": 5, "head": 64, "rotary": 64},
)
SLOTS = ([5], [0, -1, 19, 47], [3, 40])
"""Of 1, 4 and 4 tokens: one that is padding, and fewer slots than tokens."""
COUNTS = (1, 4, 4)


def calls() -> Iterator[tuple[str, Args, Pages]]:
    """Keys and values of a head side by side, pages by slot or by head; v within wider rows, with two kinds of NaN."""
    for shape in SHAPES:
        heads, size = shape["kv_heads"], shape["head"]
        for tokens, slots in zip(COUNTS, SLOTS, strict=True):
            args = draw(shape, tokens, torch.float16, torch.device("cpu"), 16, False)
            v = torch.randn(tokens, 2 * heads * size).half()[:, heads * size :].view(tokens, heads, size)
            v[0, 0, 1] = float("nan")
            v.view(torch.int16)[0, 0, 2] = 0x7C01
            by_slot = size == 128
            cache = torch.full((3, 16, heads, 2 * size) if by_slot else (3, heads, 16, 2 * size), 7.0).half()
            keys, values = (cache if by_slot else cache.transpose(1, 2)).split(size, -1)
            yield f"{shape} {slots}", args, Pages(v, keys, values, torch.tensor(slots))


def copied(pages: Pages) -> Pages:
    """On a cache of its own."""
    return replace(pages, keys=pages.keys.clone(), values=pages.values.clone())


def differing(blockings: tuple[tuple[int, int], ...], moved: int = 0) -> tuple[int, list[str]]:
    """(elements compared, calls that differ); moved: the kernel writes so many slots further."""
    compared, wrong = 0, []
    for name, args, pages in calls():
        there = copied(pages)
        expected = (*body(**args, pages=there), there.keys, there.values)
        for heads, warps in blockings:
            here = copied(pages)
            given = replace(here, slots=torch.where(here.slots < 0, here.slots, here.slots ^ moved))
            got = (*kernel.run(**args, blocks=(heads, warps), pages=given), here.keys, here.values)
            compared += sum(part.numel() for part in expected)
            pairs = zip(got, expected, strict=True)
            same = all(torch.equal(*(x.contiguous().view(torch.int16) for x in pair)) for pair in pairs)
            wrong += [] if same else [f"{name}: {heads} heads per block, {warps} warps"]
    return compared, wrong


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    compared, wrong = differing(BLOCKINGS)
    _, planted = differing(BLOCKINGS[:1], moved=1)
    print(json.dumps({"compared": compared, "wrong": wrong, "planted": len(planted)}))
