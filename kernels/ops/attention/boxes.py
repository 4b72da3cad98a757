"""What the Hopper kernel's TMA loads of: queries and caches as matrices, cut into boxes.

A launch that ran before needs no descriptor; where one is made, layouts and checks, which are those of `facts_of` and
`of_boxes`, are done once per kind.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

PANEL = 64
"""Columns of a box of keys or values: 128 bytes."""
ELEMENTS = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


@cache
def _pattern(dtype: torch.dtype, rows: int, columns: int) -> TensorDescriptor:
    """A descriptor of boxes [rows, columns], over nothing yet."""
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], ELEMENTS[dtype])
    return TensorDescriptor(
        torch.empty(rows, columns, dtype=dtype), [rows, columns], [columns, 1], [rows, columns], layout
    )


class Boxes(NamedTuple):
    """base as a matrix [rows, columns] whose rows begin `stride` elements apart, in boxes of a kind."""

    base: Tensor
    rows: int
    columns: int
    stride: int
    kind: tuple[torch.dtype, int, int]

    def descriptor(self) -> TensorDescriptor:
        """As Triton takes it."""
        found = copy.copy(_pattern(*self.kind))
        found.base, found.shape, found.strides = self.base, [self.rows, self.columns], [self.stride, 1]
        return found


def of_queries(q: Tensor, rows: int) -> Boxes:
    """q [T, H, D] as [T, H * D]: boxes are `rows` tokens of a head."""
    tokens, heads, size = q.shape
    return Boxes(q, tokens, heads * size, q.stride(0), (q.dtype, rows, size))


def of_rows(cache: Tensor, rows: int) -> Boxes:
    """A cache [pages, slots, G, D] as its slots: boxes are `rows` of them and PANEL columns."""
    pages, slots, key_heads, size = cache.shape
    page, slot, head, _ = cache.stride()
    height, width = (pages - 1) * (page // slot) + slots, (key_heads - 1) * head + size
    return Boxes(cache, height, width, slot, (cache.dtype, rows, PANEL))
