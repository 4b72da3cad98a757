"""rounding.py in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rounded(y, dtype: tl.constexpr):
    """float32 to `dtype`, nearest even; every NaN becomes the positive quiet one."""
    return tl.where(y == y, y.to(dtype), float("nan"))
