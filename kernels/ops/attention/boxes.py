"""What the Hopper kernel's TMA loads of: queries and caches as matrices, cut into boxes (kernels/ops/boxes.py). Checks
are those of `facts_of` and `of_boxes`."""

from __future__ import annotations

from torch import Tensor

from samebits.kernels.ops.boxes import SwizzledBoxes

PANEL = 64
"""Columns of a box of keys or values: 128 bytes."""


def of_queries(q: Tensor, rows: int) -> SwizzledBoxes:
    """q [T, H, D] as [T, H * D]: boxes are `rows` tokens of a head."""
    tokens, heads, size = q.shape
    return SwizzledBoxes(q, tokens, heads * size, q.stride(0), (q.dtype, rows, size))


def of_rows(cache: Tensor, rows: int) -> SwizzledBoxes:
    """A cache [pages, slots, G, D] as its slots: boxes are `rows` of them and PANEL columns."""
    pages, slots, key_heads, size = cache.shape
    page, slot, head, _ = cache.stride()
    height, width = (pages - 1) * (page // slot) + slots, (key_heads - 1) * head + size
    return SwizzledBoxes(cache, height, width, slot, (cache.dtype, rows, PANEL))
