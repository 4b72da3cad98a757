"""Calls of rotary."""

from __future__ import annotations

import torch

from samebits.kernels.ops.rows import HUGE, Args, Case, Shape

SHAPES: tuple[Shape, ...] = tuple(
    {"heads": h, "kv_heads": g, "head": d, "rotary": r}
    for h, g, d, r in ((16, 8, 128, 128), (32, 8, 128, 128), (32, 4, 64, 64), (32, 8, 128, 64))
)
SMALL_SHAPES: tuple[Shape, ...] = (
    {"heads": 4, "kv_heads": 2, "head": 16, "rotary": 16},
    {"heads": 3, "kv_heads": 1, "head": 24, "rotary": 12},
)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ROWS = ("q", "k", "positions")
GRADS = ("q", "k")
CACHE_ROWS = 512


def cache_of(width: int, exact: bool) -> torch.Tensor:
    """cos | sin, float32 [CACHE_ROWS, width], theta 10000; small integers when exact."""
    if exact:
        return (torch.arange(CACHE_ROWS)[:, None] * 7 + torch.arange(width)[None, :] * 5).remainder(5).float() - 2
    angle = torch.arange(CACHE_ROWS)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
    return torch.cat([angle.cos(), angle.sin()], -1).float()


def draw(shape: Shape, rows: int, dtype: torch.dtype, device: torch.device, seed: int, exact: bool) -> Args:
    """q and k as views of one merged qkv [rows, (H + 2 G) D], as an engine has them."""
    rng = torch.Generator(device=device).manual_seed(seed)
    h, g, d = shape["heads"], shape["kv_heads"], shape["head"]
    size = (rows, (h + 2 * g) * d)
    merged = (
        torch.randint(-8, 9, size, generator=rng, device=device)
        if exact
        else torch.randn(size, generator=rng, device=device)
    ).to(device=device, dtype=dtype)
    positions = torch.randint(0, CACHE_ROWS, (rows,), generator=rng, device=device).to(device)
    q, k = merged[:, : h * d].view(rows, h, d), merged[:, h * d : (h + g) * d].view(rows, g, d)
    return {"q": q, "k": k, "positions": positions, "cache": cache_of(shape["rotary"], exact).to(device)}


def cases(shape: Shape, dtype: torch.dtype, device: torch.device, exact: bool) -> list[Case]:
    """Few and many tokens; dense and merged; the first and last position; int32 positions; a cache in the dtype; NaN,
    Inf, huge.
    """

    def call(rows: int, seed: int, **changes: object) -> Args:
        return {**draw(shape, rows, dtype, device, seed, exact), **changes}

    found = [Case(f"{rows} tokens", call(rows, rows)) for rows in (1, 2, 5, 7 if exact else 64)]
    dense = call(4, 11)
    dense["q"], dense["k"] = dense["q"].contiguous(), dense["k"].contiguous()
    found.append(Case("dense q and k", dense))
    ends = torch.tensor([0, CACHE_ROWS - 1, 0], dtype=torch.int32, device=device)
    found.append(Case("first and last position, int32", call(3, 12, positions=ends)))
    found.append(
        Case("cache in the dtype", call(3, 13, cache=cache_of(shape["rotary"], exact).to(device=device, dtype=dtype)))
    )
    for word, value in (("NaN", float("nan")), ("Inf", float("inf")), ("huge", HUGE[dtype])):
        one = call(1, 14)
        one["q"][0, 0, 1] = value
        one["k"][0, 0, shape["head"] - 1] = value
        found.append(Case(f"a token with {word}", one, finite=False))
    return found
