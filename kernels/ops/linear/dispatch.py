"""Which implementation runs a call: a frozen table per (N, K, M), never a timing at run time. All choices have the
same bits."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from samebits.kernels.ops.linear import cublaslt
from samebits.kernels.ops.linear.segments import length, segments
from samebits.kernels.ops.linear.segments_triton import fold, split, walk
from samebits.kernels.ops.linear.triton import PLAIN, Config, chain
from samebits.kernels.ops.ran import ran

if TYPE_CHECKING:
    from samebits.kernels.ops.linear.hopper import HopperConfig

TABLE = Path(__file__).with_name("table_sm90.json")
FALLBACK = Config(16, 32, 256, 4, 3)
MANY_ROWS, MANY_FALLBACK = 128, Config(128, 128, 64, 8, 3)
"""Above so many rows sums of segments that are stored cost more than one program's second accumulator."""
MANY_HOPPER = (2, 128, 64, 6, 16, 0, 0)
"""The same on Hopper, as a HopperConfig: it takes every K above 8192 that is a multiple of 8."""
WIDE_ROWS = "4100x4096"
"""The table's shape whose rows are Triton at every M."""
TRITON_WAYS = ("join", "split", "walk", "join tma", "split tma", "walk tma")


@dataclass(slots=True, frozen=True)
class Choice:
    """One implementation: a Triton configuration, or cuBLASLt with a pinned algorithm (None: the library's
    favourite).

    hopper: the numbers of a HopperConfig, for the kernel of hopper.py.
    way: "chain" where S(K) = 1. Else Triton's "join" (a program for each segment, the last to arrive folds), "split" (a
    second launch folds) or "walk" (one program for all segments), with " tma" where tiles are loaded by descriptor, or
    cuBLASLt's "batched" (a product for each segment, then a fold). "hopper", "walk" and "walk tma": for every S(K).
    """

    triton: Config | None
    algo: str | None = None
    way: str = "chain"
    hopper: tuple[int, ...] | None = None

    @property
    def label(self) -> str:
        """A short name for tables and read-backs."""
        if self.hopper is not None:
            return f"hopper {_hopper_config(self.hopper).label}"
        way = "" if self.way == "chain" else f" {self.way}"
        if self.triton is None:
            return f"cublaslt{way}" if self.algo is None else f"cublaslt{way} (pinned)"
        c = self.triton
        return f"triton{way} {c.block_m}x{c.block_n}x{c.block_k} w{c.warps} s{c.stages}{' swap' if c.swap else ''}"


@cache
def _hopper_config(numbers: tuple[int, ...]) -> HopperConfig:
    from samebits.kernels.ops.linear.hopper import HopperConfig

    flags = {field.name for field in fields(HopperConfig) if field.type in (bool, "bool")}
    names = [field.name for field in fields(HopperConfig)]
    given: dict[str, Any] = dict(zip(names, numbers, strict=True))
    return HopperConfig(**{name: bool(value) if name in flags else value for name, value in given.items()})


def _whole_blocks(config: HopperConfig, K: int) -> bool:
    """Whether segments of K are whole blocks, and none shorter than the ring of them."""
    S, L = segments(K), length(K)
    shortest = min(L, K - (S - 1) * L)
    return (S == 1 or L % config.block_k == 0) and shortest >= config.block_k * config.stages


@cache
def _is_hopper(device: int) -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability(device)[0] == 9


@cache
def table() -> dict[str, Any]:
    """The frozen table: `cublaslt` (the version whose algorithms are pinned), `shapes`: "NxK" -> [[largest M or
    null, choice], ...]."""
    loaded: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return loaded


def parse(entry: list[Any]) -> Choice:
    """A table entry: ["triton", block_m, block_n, block_k, warps, stages, swap] or ["cublaslt", algorithm or null];
    with segments [one of TRITON_WAYS, as for triton] or ["batched", as for cublaslt]; ["hopper", the fields of
    HopperConfig] and ["walk tma", as for triton] with one, too."""
    kind = entry[0]
    if kind == "hopper":
        return Choice(None, None, kind, tuple(map(int, entry[1:])))
    if kind in ("cublaslt", "batched"):
        return Choice(None, entry[1], "chain" if kind == "cublaslt" else kind)
    assert kind in ("triton", *TRITON_WAYS), entry
    m, n, k, warps, stages, swap = entry[1:]
    return Choice(Config(m, n, k, warps, stages, bool(swap)), None, "chain" if kind == "triton" else kind)


@cache
def _nearest(N: int, K: int) -> str:
    """The table's shape with as many segments closest in log N and log K; the first of equals."""

    def distance(name: str) -> float:
        n, k = map(int, name.split("x"))
        return abs(math.log(n / N)) + abs(math.log(k / K))

    shapes: dict[str, Any] = table()["shapes"]
    return min((name for name in shapes if segments(int(name.split("x")[1])) == segments(K)), key=distance)


def _rows(N: int, K: int) -> list[list[Any]]:
    """The table's rows of this shape, or of the nearest."""
    name = f"{N}x{K}"
    rows: list[list[Any]] = table()["shapes"][name if name in table()["shapes"] else _nearest(N, K)]
    return rows


def sizes(N: int, K: int, most: int) -> list[int]:
    """Numbers of rows up to `most` that need every row of the table which 1 to `most` can."""
    edges = [edge for edge, _ in _rows(N, K) if edge is not None and edge < most]
    return [*edges, most]


def fallback(M: int, K: int, hopper: bool = False) -> Choice:
    """What runs every call. hopper: on Hopper, and nothing is odd about pointers and K."""
    if segments(K) == 1:
        return Choice(FALLBACK)
    if M <= MANY_ROWS:
        return Choice(FALLBACK, way="join")
    return Choice(None, way="hopper", hopper=MANY_HOPPER) if hopper else Choice(MANY_FALLBACK, way="walk")


def fits(choice: Choice, M: int, N: int, K: int, device: int) -> bool:
    """Whether an implementation has the contract's bits at this size; of calls with K % 8 = 0 and aligned pointers."""
    if choice.triton is not None:
        return True
    if choice.hopper is not None:
        return _is_hopper(device) and _whole_blocks(_hopper_config(choice.hopper), K)
    if M == 1 or N % 8:  # cuBLASLt has kernels of another order there
        return False
    return choice.way == "chain" or segments(K) * length(K) == K


@cache
def choose(M: int, N: int, K: int, dtype: torch.dtype, aligned: bool, has_bias: bool, device: int) -> Choice:
    """The implementation for a call; `aligned`: pointers are multiples of 16 bytes."""
    S = segments(K)
    if dtype == torch.float32:
        return Choice(PLAIN, way="chain" if S == 1 else "walk")
    if not aligned or K % 8:
        return fallback(M, K)
    choice = parse(next(entry for largest, entry in _rows(N, K) if largest is None or largest >= M))
    if not fits(choice, M, N, K, device):
        return fallback(M, K, _is_hopper(device))
    if choice.hopper is not None:
        return choice
    problem = cublaslt.Problem(M, N, K, dtype, has_bias and S == 1, device, S)
    exact = f"{N}x{K}" in table()["shapes"]
    if choice.algo is not None and not (exact and _pinned_here(problem, choice.algo)):
        return replace(choice, algo=None)
    return choice


def _pinned_here(problem: cublaslt.Problem, algo: str) -> bool:
    same = problem.dtype == torch.bfloat16 and cublaslt.version() == table()["cublaslt"]
    return same and cublaslt.usable(problem, algo)


def launch(
    choice: Choice, x_MK: Tensor, weight_NK: Tensor, bias: Tensor | None, dtype: torch.dtype | None = None
) -> Tensor:
    """What the choice names: [M, N]. dtype of the result: None (that of x); float32 from Triton alone."""
    if choice.hopper is not None:
        from samebits.kernels.ops.linear.hopper import product

        return product(x_MK, weight_NK, bias, _hopper_config(choice.hopper), length(x_MK.shape[1]))
    if choice.triton is None:
        if choice.way == "chain":
            return cublaslt.matmul(x_MK, weight_NK, bias, choice.algo)
        parts = cublaslt.partials(x_MK, weight_NK, segments(x_MK.shape[1]), choice.algo)
        return fold(parts, bias, x_MK.dtype)
    if choice.way == "chain":
        return chain(x_MK, weight_NK, bias, choice.triton, dtype)
    way, _, tma = choice.way.partition(" ")
    if way == "walk":
        return walk(x_MK, weight_NK, bias, choice.triton, dtype, tma == "tma")
    return split(x_MK, weight_NK, bias, choice.triton, dtype, tma == "tma", way == "join")


def run(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The fast implementation on CUDA; see README.md. x [..., K], weight [N, K], bias [N] or None."""
    flat = x.dim() == 2
    x_MK = x if flat else x.reshape(-1, x.shape[-1])
    (M, K), N = x_MK.shape, weight.shape[0]
    pointers = x_MK.data_ptr() | weight.data_ptr() | (0 if bias is None else bias.data_ptr())
    choice, name = _chosen(M, N, K, x.dtype, pointers % 16 == 0, bias is not None, x.device.index or 0)
    ran(name)
    y_MN = launch(choice, x_MK, weight, bias)
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
    if segments(x_MK.shape[1]) > 1:
        choice = replace(choice, way="join" if x_MK.shape[0] <= MANY_ROWS and x.dtype != torch.float32 else "walk")
    ran(f"linear float32 {choice.label}")
    y_MN = launch(choice, x_MK, weight, bias, torch.float32)
    return y_MN.reshape(*x.shape[:-1], weight.shape[0])
