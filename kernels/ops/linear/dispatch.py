"""Which implementation runs a call: a frozen table per (N, K, M), never a timing at run time. All choices have the
same bits."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samebits.kernels.ops.linear import cublaslt
from samebits.kernels.ops.linear.triton import PLAIN, Config, chain
from samebits.kernels.ops.ran import ran

TABLE = Path(__file__).with_name("table_sm90.json")
FALLBACK = Config(16, 32, 256, 4, 3)
WIDE_ROWS = "4100x4096"
"""The table's shape whose rows are Triton at every M."""


@dataclass(slots=True, frozen=True)
class Choice:
    """One implementation: a Triton configuration, or cuBLASLt with a pinned algorithm (None: the library's
    favourite)."""

    triton: Config | None
    algo: str | None = None

    @property
    def label(self) -> str:
        """A short name for tables and read-backs."""
        if self.triton is None:
            return "cublaslt" if self.algo is None else "cublaslt (pinned)"
        c = self.triton
        return f"triton {c.block_m}x{c.block_n}x{c.block_k} w{c.warps} s{c.stages}{' swap' if c.swap else ''}"


@cache
def table() -> dict[str, Any]:
    """The frozen table: `cublaslt` (the version whose algorithms are pinned), `shapes`: "NxK" -> [[largest M or
    null, choice], ...]."""
    loaded: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return loaded


def parse(entry: list[Any]) -> Choice:
    """A table entry: ["triton", block_m, block_n, block_k, warps, stages, swap] or ["cublaslt", algorithm or null]."""
    if entry[0] == "cublaslt":
        return Choice(None, entry[1])
    m, n, k, warps, stages, swap = entry[1:]
    return Choice(Config(m, n, k, warps, stages, bool(swap)))


@cache
def _nearest(N: int, K: int) -> str:
    """The table's shape closest in log N and log K; the first of equals."""

    def distance(name: str) -> float:
        n, k = map(int, name.split("x"))
        return abs(math.log(n / N)) + abs(math.log(k / K))

    shapes: dict[str, Any] = table()["shapes"]
    return min(shapes, key=distance)


@cache
def choose(M: int, N: int, K: int, dtype: torch.dtype, aligned: bool, has_bias: bool, device: int) -> Choice:
    """The implementation for a call; `aligned`: pointers are multiples of 16 bytes."""
    if dtype == torch.float32:
        return Choice(PLAIN)
    if not aligned or K % 8:
        return Choice(FALLBACK)
    name = f"{N}x{K}"
    exact = name in table()["shapes"]
    rows = table()["shapes"][name if exact else _nearest(N, K)]
    choice = parse(next(entry for largest, entry in rows if largest is None or largest >= M))
    if choice.triton is not None:
        return choice
    if M == 1 or N % 8:  # cuBLASLt has kernels of another order there
        return Choice(FALLBACK)
    if choice.algo is not None and not (exact and _pinned_here(M, N, K, dtype, has_bias, device, choice.algo)):
        return Choice(None)
    return choice


def _pinned_here(M: int, N: int, K: int, dtype: torch.dtype, has_bias: bool, device: int, algo: str) -> bool:
    same = cublaslt.version() == table()["cublaslt"] and dtype == torch.bfloat16
    return same and cublaslt.usable(cublaslt.Problem(M, N, K, dtype, has_bias, device), algo)


def run(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The fast implementation on CUDA; see README.md. x [..., K], weight [N, K], bias [N] or None."""
    flat = x.dim() == 2
    x_MK = x if flat else x.reshape(-1, x.shape[-1])
    (M, K), N = x_MK.shape, weight.shape[0]
    pointers = x_MK.data_ptr() | weight.data_ptr() | (0 if bias is None else bias.data_ptr())
    choice, name = _chosen(M, N, K, x.dtype, pointers % 16 == 0, bias is not None, x.device.index or 0)
    ran(name)
    y_MN = (
        cublaslt.matmul(x_MK, weight, bias, choice.algo)
        if choice.triton is None
        else chain(x_MK, weight, bias, choice.triton)
    )
    return y_MN if flat else y_MN.reshape(*x.shape[:-1], N)


@cache
def _chosen(*call: Any) -> tuple[Choice, str]:
    """`choose`, and the name under which it is counted."""
    choice = choose(*call)
    return choice, f"linear {choice.label}"


def run_wide(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`run` without the last rounding: float32. Triton at every M, by the table's rows for a width not of cuBLASLt."""
    x_MK = x.reshape(-1, x.shape[-1])
    rows = table()["shapes"][WIDE_ROWS]
    entry = next(entry for largest, entry in rows if largest is None or largest >= x_MK.shape[0])
    choice = parse(entry)
    assert choice.triton is not None
    ran(f"linear float32 {choice.label}")
    y_MN = chain(x_MK, weight, bias, choice.triton, torch.float32)
    return y_MN.reshape(*x.shape[:-1], weight.shape[0])
