"""Calls of embedding."""

from __future__ import annotations

import functools

import torch

from samebits.kernels.ops.rows import Args, Case, Shape

SHAPES: tuple[Shape, ...] = ({"vocabulary": 32000, "hidden": 4096}, {"vocabulary": 151936, "hidden": 2048})
SMALL_SHAPES: tuple[Shape, ...] = ({"vocabulary": 67, "hidden": 40},)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ROWS = ("ids",)
GRADS = ("table",)


@functools.lru_cache(maxsize=2)
def table_of(vocabulary: int, hidden: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Weights: the same for every call, made once."""
    rng = torch.Generator(device=device).manual_seed(7)
    return torch.randn((vocabulary, hidden), generator=rng, device=device).to(dtype)


def draw(shape: Shape, rows: int, dtype: torch.dtype, device: torch.device, seed: int, exact: bool) -> Args:
    """ids [rows], table [V, D]; the table is the same for every seed, as weights are. A copy is exact for any values"""
    table = table_of(shape["vocabulary"], shape["hidden"], dtype, device)
    ids = torch.randint(
        0, shape["vocabulary"], (rows,), generator=torch.Generator(device=device).manual_seed(seed), device=device
    )
    return {"ids": ids.to(device), "table": table}


def cases(shape: Shape, dtype: torch.dtype, device: torch.device, exact: bool) -> list[Case]:
    """Few and many tokens; the first and last row, repeated; int32; two dims; rows with NaN payloads, Inf and both
    zeros.
    """
    counts = (1, 2, 5, 17 if exact else 64)
    found = [Case(f"{rows} tokens", draw(shape, rows, dtype, device, rows, exact)) for rows in counts]
    table = found[0].args["table"]
    last = shape["vocabulary"] - 1
    ends = torch.tensor([0, last, last, 0], dtype=torch.int32, device=device)
    found += [
        Case("first and last row, int32", {"ids": ends, "table": table}),
        Case("two dims", {"ids": ends.long().view(2, 2), "table": table}),
    ]
    odd = table.clone()
    odd[0, :4] = torch.tensor([float("nan"), float("inf"), -0.0, 0.0], device=device).to(dtype)
    integers = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    payload = {torch.bfloat16: 0x7FA5, torch.float16: 0x7DA5, torch.float32: 0x7FA00005}[dtype]
    odd.view(integers)[last, 0] = payload
    found.append(Case("NaN payload, Inf, zeros", {"ids": ends, "table": odd}, finite=False))
    return found
