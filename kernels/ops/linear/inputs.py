"""Calls of the linear operator. M rows, N outputs, K reduced."""

from __future__ import annotations

import torch

from samebits.kernels.ops.rows import Args, Case, Shape


def _shape(n: int, k: int, bias: int = 0) -> Shape:
    return {"n": n, "k": k, "bias": bias}


# Qwen3-1.7B, Qwen3-8B, Llama-3.1-8B, Llama-3.2-1B, shards of Qwen3-8B at TP 8, a router, an odd vocabulary shard.
SHAPES: tuple[Shape, ...] = (
    *(_shape(n, 2048) for n in (2048, 4096, 12288, 151936)),
    *(_shape(n, 4096) for n in (4096, 6144, 24576, 151936)),
    *(_shape(2048, 6144), _shape(4096, 12288), _shape(28672, 4096), _shape(4096, 14336)),
    *(_shape(3072, 2048, 1), _shape(2048, 8192), _shape(128256, 2048)),
    *(_shape(768, 4096, 1), _shape(512, 4096), _shape(512, 12288), _shape(128, 4096), _shape(4100, 4096)),
)
SMALL_SHAPES: tuple[Shape, ...] = (_shape(48, 64), _shape(33, 40, 1), _shape(16, 100))
DTYPES = (torch.bfloat16, torch.float16)
ROWS = ("x",)
GRADS = ("x", "weight", "bias")


def draw(shape: Shape, rows: int, dtype: torch.dtype, device: torch.device, seed: int, exact: bool) -> Args:
    """x [rows, k], weight [n, k], bias [n] or None. exact: products and sums of small integers, the same in every
    order."""
    rng = torch.Generator(device=device).manual_seed(seed)
    n, k = shape["n"], shape["k"]

    def tensor(*size: int, scale: float = 1.0) -> torch.Tensor:
        if exact:
            return torch.randint(-3, 4, size, generator=rng, device=device).to(dtype)
        return (torch.randn(size, generator=rng, device=device) * scale).to(dtype)

    args: Args = {"x": tensor(rows, k), "weight": tensor(n, k, scale=k**-0.5)}
    args["bias"] = tensor(n) if shape.get("bias", 0) else None
    return args


def cases(shape: Shape, dtype: torch.dtype, device: torch.device, exact: bool) -> list[Case]:
    """Few and many rows, none, cancelling and unlike sizes, minus zeros, a
    stacked batch."""

    def call(rows: int, seed: int) -> Args:
        return draw(shape, rows, dtype, device, seed, exact)

    found = [Case(f"{rows} rows", call(rows, rows)) for rows in (1, 2, 7, 16, 17, 65, 130)]
    found.append(Case("no row", call(0, 3)))
    stacked = call(6, 4)
    stacked["x"] = stacked["x"].reshape(2, 3, -1)
    found.append(Case("[2, 3, K]", stacked))
    zeros = call(2, 5)
    zeros["x"].zero_()
    zeros["x"][1] = -0.0
    found.append(Case("zeros and minus zeros", zeros))
    if not exact:
        unlike = call(8, 6)
        unlike["x"] *= torch.logspace(-6, 3, shape["k"], device=device).to(dtype)
        found.append(Case("columns of unlike size", unlike))
        cancel = call(4, 7)
        half = shape["k"] // 2
        cancel["weight"][:, half : 2 * half] = -cancel["weight"][:, :half]
        cancel["x"][:, half : 2 * half] = cancel["x"][:, :half]
        # Exactly zero in float64: a relative error means nothing, only the bits count.
        found.append(Case("sums that cancel", cancel, finite=False))
    return found
