"""Calls of silu_mul."""

from __future__ import annotations

import torch

from samebits.kernels.ops.rows import HUGE, Args, Case, Shape

SHAPES: tuple[Shape, ...] = ({"width": 6144}, {"width": 12288}, {"width": 14336}, {"width": 1536})
SMALL_SHAPES: tuple[Shape, ...] = ({"width": 192}, {"width": 50})
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ROWS = ("gate", "up")
GRADS = ("gate", "up")
SATURATED = (0, 18, 19, 24, 30, -104, -110, -128)
"""Where 1 + exp(-gate) is 2, 1 or Inf in float32 whoever computes the exponential."""


def draw(shape: Shape, rows: int, dtype: torch.dtype, device: torch.device, seed: int, exact: bool) -> Args:
    """gate and up [rows, width], as the two halves of one merged tensor when rows is even."""
    rng = torch.Generator(device=device).manual_seed(seed)
    width = shape["width"]
    if exact:
        gate = torch.tensor(SATURATED, device=device)[
            torch.randint(0, len(SATURATED), (rows, width), generator=rng, device=device)
        ]
        merged = torch.cat([gate, torch.randint(-8, 9, (rows, width), generator=rng, device=device)], -1)
    else:
        merged = torch.randn((rows, 2 * width), generator=rng, device=device) * 3
    gate, up = merged.to(device=device, dtype=dtype).chunk(2, -1)
    return {"gate": gate, "up": up} if rows % 2 == 0 else {"gate": gate.contiguous(), "up": up.contiguous()}


def cases(shape: Shape, dtype: torch.dtype, device: torch.device, exact: bool) -> list[Case]:
    """Few and many rows, merged and apart; zeros of both signs; saturation on both ends; NaN, Inf and huge elements in
    a row alone.
    """
    counts = (1, 2, 5, 17 if exact else 64)
    found = [Case(f"{rows} rows", draw(shape, rows, dtype, device, rows, exact)) for rows in counts]
    zeros = draw(shape, 2, dtype, device, 11, exact)
    zeros["gate"][0], zeros["gate"][1] = 0.0, -0.0
    found.append(Case("zeros", zeros))
    if not exact:
        wide = draw(shape, 4, dtype, device, 12, exact)
        wide["gate"] *= 30
        found.append(Case("saturated", wide))
        tiny = draw(shape, 3, dtype, device, 13, exact)
        tiny["up"] *= 1e-4
        found.append(Case("small products", tiny))
    for word, value in (("NaN", float("nan")), ("Inf", float("inf")), ("-Inf", float("-inf")), ("huge", HUGE[dtype])):
        one = draw(shape, 1, dtype, device, 14, exact)
        one["gate"][0, 1] = value
        one["up"][0, 3] = value
        found.append(Case(f"a row with {word}", one, finite=False))
    return found
