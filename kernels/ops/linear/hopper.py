"""Launches of the Hopper kernel of the linear operator (gluon.py). M tokens, N outputs, K reduced.

Every configuration gives the same bits. Sums that wait in memory are allocated per call, so launches on several
streams and captured ones share nothing; counters of arrival are those of arrivals.py, or zeros made for the call.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from samebits.kernels.ops.launch import Form
from samebits.kernels.ops.linear.arrivals import arrivals
from samebits.kernels.ops.linear.boxes import ELEMENTS, SwizzledBoxes
from samebits.kernels.ops.linear.gluon import linear_hopper_kernel

ROWS = 64
"""Tokens of a warpgroup."""


@dataclass(slots=True, frozen=True)
class HopperConfig:
    """One launch: tiles of 64 * `consumers` tokens x `block_n` outputs, K in blocks of `block_k` in a ring of `stages`.

    span: segments of a program, a divisor of S; 0: all of them. keep: with all of them, the halves of the total that
    wait in registers (2: at most 128 outputs); shared: the rest waits in shared memory, else in L2. group: rows of
    tiles that are walked together. skew: blocks by which a warpgroup starts behind the one before it. per_sm: programs
    of a multiprocessor at a time (2: one warpgroup only).
    """

    consumers: int
    block_n: int
    block_k: int
    stages: int
    span: int = 0
    keep: int = 2
    group: int = 8
    skew: int = 0
    per_sm: int = 1
    shared: bool = False

    @property
    def label(self) -> str:
        """A short name for tables and read-backs."""
        walk = f"span {self.span}" if self.span else f"keep {self.keep}{' shared' if self.shared else ''}"
        more = f" g{self.group}" + (f" skew {self.skew}" if self.skew else "") + (" x2" if self.per_sm > 1 else "")
        return f"{ROWS * self.consumers}x{self.block_n}x{self.block_k} s{self.stages} {walk}{more}"


def fits(x_MK: Tensor, weight_NK: Tensor) -> bool:
    """Whether the kernel takes these: its loads want 16-byte rows of 16-bit elements."""
    pointers = x_MK.data_ptr() | weight_NK.data_ptr()
    return x_MK.dtype in ELEMENTS and x_MK.shape[1] % 8 == 0 and pointers % 16 == 0


@cache
def _multiprocessors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _form(config: HopperConfig, segments: int, even: bool, has_bias: bool) -> Form:
    """The kernel of a configuration. even: N is a multiple of its tile."""
    keep = config.keep if segments > 1 else 2
    return Form(
        linear_hopper_kernel,
        SEGMENTS=segments,
        SPAN=config.span or segments,
        CONSUMERS=config.consumers,
        STAGES=config.stages,
        KEEP=keep,
        SHARED=config.shared and keep < 2,
        SKEW=config.skew if config.consumers > 1 else 0,
        EVEN=even,
        BIAS=has_bias,
        num_warps=4,
        maxnreg=_registers(config),
    )


def product(x_MK: Tensor, weight_NK: Tensor, bias: Tensor | None, config: HopperConfig, length: int) -> Tensor:
    """[M, N] in the dtype of x. length: elements of K a segment, the last one may be shorter; a multiple of
    `block_k` where it is less than K. x and weight dense, see `fits`.

    Raises ValueError where length and configuration do not go together.
    """
    (M, K), N = x_MK.shape, weight_NK.shape[0]
    segments = -(-K // length)
    span = config.span or segments
    shortest = min(length, K - (segments - 1) * length)
    if (segments > 1 and length % config.block_k) or segments % span or shortest < config.block_k * config.stages:
        raise ValueError(f"segments of {length} of {K} do not go with {config.label}")
    y_MN = torch.empty(M, N, dtype=x_MK.dtype, device=x_MK.device)
    if M == 0:
        return y_MN
    tiles_m, tiles_n = -(-M // (ROWS * config.consumers)), -(-N // config.block_n)
    items = tiles_m * tiles_n * (segments // span)
    programs = min(items, _multiprocessors(x_MK.device.index or 0) * config.per_sm)
    sums, arrived = _memory(y_MN, tiles_m * tiles_n, programs, segments, span, config)
    form = _form(config, segments, N % config.block_n == 0, bias is not None)
    form(
        (programs, 1, 1),
        (y_MN if bias is None else bias, y_MN, sums, arrived),
        (M, N, -(-K // config.block_k), -(-length // config.block_k), items, tiles_m, tiles_n, config.group),
        (
            SwizzledBoxes(x_MK, M, K, K, (x_MK.dtype, ROWS, config.block_k)),
            SwizzledBoxes(weight_NK, N, K, K, (x_MK.dtype, config.block_n, config.block_k)),
        ),
    )
    return y_MN


def _registers(config: HopperConfig) -> int | None:
    """Of a thread at the start, where the compiler's own choice is above what a thread may have: one warpgroup and the
    producer. They are handed to the warpgroup then."""
    if config.consumers > 1:
        return None
    return 168 if config.per_sm == 1 else 128


def _memory(
    y_MN: Tensor, tiles: int, programs: int, segments: int, span: int, config: HopperConfig
) -> tuple[Tensor, Tensor]:
    """Where sums wait, and counters of arrival; the output itself where a launch needs none."""
    size = config.consumers * ROWS * config.block_n
    if segments == 1 or (span == segments and (config.keep == 2 or config.shared)):
        return y_MN, y_MN
    if span == segments:
        return torch.empty(programs * size, dtype=torch.float32, device=y_MN.device), y_MN
    sums = torch.empty(tiles * (1 + segments - span) * size, dtype=torch.float32, device=y_MN.device)
    counters = arrivals(y_MN.device, tiles * config.consumers)
    if counters is None:
        counters = torch.zeros(tiles * config.consumers, dtype=torch.int32, device=y_MN.device)
    return sums, counters
