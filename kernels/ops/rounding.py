"""The last rounding of every operator."""

from __future__ import annotations

import torch


def rounded(y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float32 to `dtype`, nearest even; every NaN becomes the positive quiet one: 0x7fc00000, 0x7fc0 (bf16), 0x7e00
    (float16).

    The NaN is put in after the conversion: what a conversion makes of a NaN differs between CPU and GPU, and between
    two compilations for one GPU.
    """
    return torch.where(torch.isnan(y), torch.nan, y.to(dtype))
