"""Calls of rms_norm."""

from __future__ import annotations

import torch

from samebits.kernels.ops.rows import HUGE, Args, Case, Shape

SHAPES: tuple[Shape, ...] = tuple(
    {"hidden": hidden, "residual": residual}
    for hidden, residual in ((2048, 1), (4096, 1), (4096, 0), (5120, 1), (128, 0), (8192, 1))
)
SMALL_SHAPES: tuple[Shape, ...] = ({"hidden": 256, "residual": 1}, {"hidden": 100, "residual": 0})
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ROWS = ("x", "residual")
GRADS = ("x", "weight", "residual")
EPS = 1e-6


def draw(shape: Shape, rows: int, dtype: torch.dtype, device: torch.device, seed: int, exact: bool) -> Args:
    """x, residual [rows, hidden], weight [hidden]."""
    rng = torch.Generator(device=device).manual_seed(seed)
    width = shape["hidden"]

    def tensor(*size: int) -> torch.Tensor:
        if exact:  # |s| <= 8: sums of squares stay integers below 2^24 in every order
            return torch.randint(-4, 5, size, generator=rng, device=device).to(dtype)
        return torch.randn(size, generator=rng, device=device).to(dtype)

    args: Args = {
        "x": tensor(rows, width),
        "weight": (tensor(width) if exact else 1 + 0.2 * tensor(width)).to(dtype),
        "eps": EPS,
    }
    args = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in args.items()}
    args["residual"] = tensor(rows, width).to(device) if shape.get("residual", 0) else None
    return args


def cases(shape: Shape, dtype: torch.dtype, device: torch.device, exact: bool) -> list[Case]:
    """Few and many rows; without weight; zeros and minus zeros; one large element; tiny rows; a misaligned view; one
    NaN or Inf row alone.
    """

    def call(rows: int, seed: int, **changes: object) -> Args:
        return {**draw(shape, rows, dtype, device, seed, exact), **changes}

    found = [Case(f"{rows} rows", call(rows, rows)) for rows in (1, 2, 5, 17 if exact else 64)]
    found.append(Case("no weight", call(4, 11, weight=None)))
    zero = torch.zeros((2, shape["hidden"]), dtype=dtype, device=device)
    zero[1] = -0.0
    found.append(Case("zeros", call(2, 12, x=zero, residual=None if not shape.get("residual", 0) else zero.clone())))
    peak = call(2, 13)
    peak["x"][:, shape["hidden"] // 3] = 512 if exact else 30000
    found.append(Case("one large element", peak))
    if not exact:
        mixed = call(5, 14)
        mixed["x"] *= torch.tensor([1e-3, 1, 1e2, 1e-4, 3], device=device)[:, None].to(dtype)
        found.append(Case("rows of unlike size", mixed))
    wide = draw({**shape, "hidden": shape["hidden"] + 1}, 3, dtype, device, 15, exact)["x"]
    found.append(Case("misaligned rows", call(3, 16, x=wide[:, 1:])))
    for word, value in (("NaN", float("nan")), ("Inf", float("inf")), ("huge", HUGE[dtype])):
        one = call(1, 17)
        one["x"][0, 1] = value
        found.append(Case(f"a row with {word}", one, finite=False))
    return found
