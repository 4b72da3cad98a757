"""What the Hopper kernel's TMA loads of: queries and caches as matrices, cut into boxes.

Descriptors are made at every call, in an engine dozens of times per step: their layouts and their checks, which are
those of `fits_hopper`, are done once per kind.
"""

from __future__ import annotations

import copy
from functools import cache

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


def _over(base: Tensor, shape: list[int], row: int, box: tuple[int, int]) -> TensorDescriptor:
    """base as a matrix of this shape whose rows begin `row` elements apart."""
    found = copy.copy(_pattern(base.dtype, *box))
    found.base, found.shape, found.strides = base, shape, [row, 1]
    return found


def of_queries(q: Tensor, rows: int) -> TensorDescriptor:
    """q [T, H, D] as [T, H * D]: boxes are `rows` tokens of a head."""
    tokens, heads, size = q.shape
    return _over(q, [tokens, heads * size], q.stride(0), (rows, size))


def of_rows(cache: Tensor, rows: int) -> TensorDescriptor:
    """A cache [pages, slots, G, D] as its slots: boxes are `rows` of them and PANEL columns."""
    pages, slots, key_heads, size = cache.shape
    page, slot, head, _ = cache.stride()
    return _over(cache, [(pages - 1) * (page // slot) + slots, (key_heads - 1) * head + size], slot, (rows, PANEL))
