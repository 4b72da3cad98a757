"""Which implementation runs a call: a frozen table per (N, K, M), never a timing at run time. All choices have the
same bits."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samebits.kernels.ops.linear import cublaslt
from samebits.kernels.ops.linear.segments import segments
from samebits.kernels.ops.linear.segments_triton import fold, split, walk
from samebits.kernels.ops.linear.triton import PLAIN, Config, chain
from samebits.kernels.ops.ran import ran

TABLE = Path(__file__).with_name("table_sm90.json")
FALLBACK = Config(16, 32, 256, 4, 3)
WIDE_ROWS = "4100x4096"
"""The table's shape whose rows are Triton at every M."""


@dataclass(slots=True, frozen=True)
class Choice:
    """One implementation: a Triton configuration, or cuBLASLt with a pinned algorithm (None: the library's
    favourite).

    way: "chain" where S(N, K) = 1. Else Triton's "split" (a program for each segment) or "walk" (one for all of them),
    with " tma" where tiles are loaded by descriptor, or cuBLASLt's "batch" (a product for each segment).
    """

    triton: Config | None
    algo: str | None = None
    way: str = "chain"

    @property
    def label(self) -> str:
        """A short name for tables and read-backs."""
        way = "" if self.way == "chain" else f" {self.way}"
        if self.triton is None:
            return f"cublaslt{way}" if self.algo is None else f"cublaslt{way} (pinned)"
        c = self.triton
        return f"triton{way} {c.block_m}x{c.block_n}x{c.block_k} w{c.warps} s{c.stages}{' swap' if c.swap else ''}"


@cache
def table() -> dict[str, Any]:
    """The frozen table: `cublaslt` (the version whose algorithms are pinned), `shapes`: "NxK" -> [[largest M or
    null, choice], ...], `segments`: the same for shapes with S(N, K) > 1."""
    loaded: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return loaded


def parse(entry: list[Any]) -> Choice:
    """A table entry: ["triton", block_m, block_n, block_k, warps, stages, swap] or ["cublaslt", algorithm or null];
    with segments [one of Triton's ways, as for triton] or ["batch", as for cublaslt]."""
    way = {"triton": "chain", "cublaslt": "chain"}.get(entry[0], entry[0])
    if entry[0] in ("cublaslt", "batch"):
        return Choice(None, entry[1], way)
    m, n, k, warps, stages, swap = entry[1:]
    return Choice(Config(m, n, k, warps, stages, bool(swap)), None, way)


@cache
def _nearest(N: int, K: int, part: str) -> str:
    """The shape of this part of the table closest in log N and log K; the first of equals."""

    def distance(name: str) -> float:
        n, k = map(int, name.split("x"))
        return abs(math.log(n / N)) + abs(math.log(k / K))

    shapes: dict[str, Any] = table()[part]
    return min(shapes, key=distance)


@cache
def choose(M: int, N: int, K: int, dtype: torch.dtype, aligned: bool, has_bias: bool, device: int) -> Choice:
    """The implementation for a call; `aligned`: pointers are multiples of 16 bytes."""
    S = segments(N, K)
    part, fallback = ("shapes", Choice(FALLBACK)) if S == 1 else ("segments", Choice(FALLBACK, way="split"))
    if dtype == torch.float32:
        return Choice(PLAIN, way="chain" if S == 1 else "walk")
    if not aligned or K % 8:
        return fallback
    name = f"{N}x{K}"
    exact = name in table()[part]
    rows = table()[part][name if exact else _nearest(N, K, part)]
    choice = parse(next(entry for largest, entry in rows if largest is None or largest >= M))
    if choice.triton is not None:
        return choice
    if M == 1 or N % 8:  # cuBLASLt has kernels of another order there
        return fallback
    problem = cublaslt.Problem(M, N, K, dtype, has_bias and S == 1, device, S)
    if choice.algo is not None and not (exact and _pinned_here(problem, choice.algo)):
        return Choice(None, way=choice.way)
    return choice


def _pinned_here(problem: cublaslt.Problem, algo: str) -> bool:
    same = cublaslt.version() == table()["cublaslt"] and problem.dtype == torch.bfloat16
    return same and cublaslt.usable(problem, algo)


def launch(
    choice: Choice, x_MK: Tensor, weight_NK: Tensor, bias: Tensor | None, dtype: torch.dtype | None = None
) -> Tensor:
    """What the choice names: [M, N]. dtype of the result: None (that of x), or float32 where it is Triton or has
    segments."""
    if choice.way == "chain":
        if choice.triton is None:
            return cublaslt.matmul(x_MK, weight_NK, bias, choice.algo)
        return chain(x_MK, weight_NK, bias, choice.triton, dtype)
    S = segments(weight_NK.shape[0], x_MK.shape[1])
    if choice.triton is None:
        return fold(cublaslt.partials(x_MK, weight_NK, S, choice.algo), bias, dtype or x_MK.dtype)
    way, _, tma = choice.way.partition(" ")
    return (walk if way == "walk" else split)(x_MK, weight_NK, bias, choice.triton, S, dtype, tma == "tma")


def run(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The fast implementation on CUDA; see README.md. x [..., K], weight [N, K], bias [N] or None."""
    x_MK = x.reshape(-1, x.shape[-1])
    (M, K), N = x_MK.shape, weight.shape[0]
    aligned = x_MK.data_ptr() % 16 == 0 and weight.data_ptr() % 16 == 0 and (bias is None or bias.data_ptr() % 16 == 0)
    choice = choose(M, N, K, x.dtype, aligned, bias is not None, x.device.index or 0)
    ran(f"linear {choice.label}")
    return launch(choice, x_MK, weight, bias).reshape(*x.shape[:-1], N)


def run_wide(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`run` without the last rounding: float32. Triton at every M, by the table's rows for a width not of cuBLASLt."""
    x_MK = x.reshape(-1, x.shape[-1])
    rows = table()["shapes"][WIDE_ROWS]
    entry = next(entry for largest, entry in rows if largest is None or largest >= x_MK.shape[0])
    choice = parse(entry)
    assert choice.triton is not None
    if segments(*weight.shape) > 1:
        choice = replace(choice, way="walk")
    ran(f"linear float32 {choice.label}")
    return launch(choice, x_MK, weight, bias, torch.float32).reshape(*x.shape[:-1], weight.shape[0])
