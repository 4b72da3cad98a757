"""Calls of normed_rotary."""

from __future__ import annotations

import torch

from samebits.kernels.ops.rotary import inputs as rotary
from samebits.kernels.ops.rows import Args, Case, Shape

SHAPES: tuple[Shape, ...] = tuple(
    {"heads": h, "kv_heads": g, "head": d, "rotary": d} for h, g, d in ((16, 8, 128), (32, 8, 128), (32, 4, 64))
)
SMALL_SHAPES: tuple[Shape, ...] = (
    {"heads": 4, "kv_heads": 2, "head": 64, "rotary": 64},
    {"heads": 3, "kv_heads": 1, "head": 128, "rotary": 128},
)
DTYPES = (torch.bfloat16, torch.float16)
ROWS = ("q", "k", "positions")
GRADS: tuple[str, ...] = ()
EPS = 1e-6


def draw(shape: Shape, rows: int, dtype: torch.dtype, device: torch.device, seed: int, exact: bool) -> Args:
    """rotary's q, k, positions and cache, and a weight for each of q and k."""
    args = rotary.draw(shape, rows, dtype, device, seed, exact)
    rng = torch.Generator(device=device).manual_seed(seed + 1)
    for name in ("q_weight", "k_weight"):
        weight = torch.randn(shape["head"], generator=rng, device=device) * 0.2 + 1
        args[name] = weight.to(dtype)
    return args | {"eps": EPS}


def cases(shape: Shape, dtype: torch.dtype, device: torch.device, exact: bool) -> list[Case]:
    """Few and many tokens, dense heads, the first and last position, a cache in the dtype, a head of zeros, NaN."""
    found = [Case(f"{rows} tokens", draw(shape, rows, dtype, device, rows, exact)) for rows in (1, 2, 7, 65)]
    dense = draw(shape, 4, dtype, device, 11, exact)
    dense["q"], dense["k"] = dense["q"].contiguous(), dense["k"].contiguous()
    ends = draw(shape, 3, dtype, device, 12, exact)
    ends["positions"] = torch.tensor([0, rotary.CACHE_ROWS - 1, 0], device=device)
    narrow = draw(shape, 3, dtype, device, 13, exact)
    narrow["cache"] = narrow["cache"].to(dtype)
    zero = draw(shape, 2, dtype, device, 14, exact)
    zero["q"][0, 0] = 0
    bad = draw(shape, 2, dtype, device, 15, exact)
    bad["k"][0, 0, 1] = float("nan")
    return [
        *found,
        Case("dense q and k", dense),
        Case("first and last position", ends),
        Case("cache in the dtype", narrow),
        Case("a head of zeros", zero),
        Case("a token with NaN", bad, finite=False),
    ]
