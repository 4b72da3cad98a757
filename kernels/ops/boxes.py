"""What TMA loads of: tensors as matrices [rows, columns], cut into boxes.

A launch that ran before needs no descriptor, only where a matrix lies and how large it is.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as Swizzled
from triton.tools.tensor_descriptor import TensorDescriptor

ELEMENTS = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


class Boxes(NamedTuple):
    """base as a matrix whose rows begin `stride` elements apart; kind: dtype, rows and columns of a box. For Triton's
    kernels."""

    base: Tensor
    rows: int
    columns: int
    stride: int
    kind: tuple[torch.dtype, int, int]

    def descriptor(self) -> TensorDescriptor:
        """As Triton takes it."""
        return TensorDescriptor(self.base, [self.rows, self.columns], [self.stride, 1], list(self.kind[1:]))


@cache
def _pattern(dtype: torch.dtype, rows: int, columns: int) -> Swizzled:
    """A descriptor of boxes [rows, columns], over nothing yet: layout and checks are made once per kind."""
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], ELEMENTS[dtype])
    return Swizzled(torch.empty(rows, columns, dtype=dtype), [rows, columns], [columns, 1], [rows, columns], layout)


class SwizzledBoxes(Boxes):
    """The same for Gluon's, which are told the layout in shared memory."""

    def descriptor(self) -> Swizzled:
        """As Triton takes it."""
        found = copy.copy(_pattern(*self.kind))
        found.base, found.shape, found.strides = self.base, [self.rows, self.columns], [self.stride, 1]
        return found
