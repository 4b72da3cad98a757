"""Launches of the Hopper kernel of the linear operator (gluon.py). M tokens, N outputs, K reduced.

Every configuration gives the same bits. Nothing is shared by launches: they may run beside each other, captured or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from samebits.kernels.ops.boxes import ELEMENTS, SwizzledBoxes
from samebits.kernels.ops.launch import Form
from samebits.kernels.ops.linear.gluon import linear_hopper_kernel

ROWS = 64
"""Tokens of a warpgroup."""
REGISTERS = 168
"""Of a thread at the start, where the compiler's own choice is above what a thread may have: one warpgroup and the
producer. They are handed to the warpgroup then."""


@dataclass(slots=True, frozen=True)
class HopperConfig:
    """One launch: tiles of 64 * `consumers` tokens (1 or 2) x `block_n` outputs, K in blocks of `block_k` in a ring of
    `stages`.

    group: rows of tiles that are walked together. skew: blocks by which the second warpgroup starts behind the first.
    shared: with segments, half of the total waits in shared memory (more than 128 outputs do not fit in registers).
    """

    consumers: int
    block_n: int
    block_k: int
    stages: int
    group: int = 8
    skew: int = 0
    shared: bool = False

    @property
    def label(self) -> str:
        """A short name for tables and read-backs."""
        more = f" g{self.group}" + (f" skew {self.skew}" if self.skew else "") + (" shared" if self.shared else "")
        return f"{ROWS * self.consumers}x{self.block_n}x{self.block_k} s{self.stages}{more}"


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
    return Form(
        linear_hopper_kernel,
        SEGMENTS=segments,
        CONSUMERS=config.consumers,
        STAGES=config.stages,
        SHARED=config.shared and segments > 1,
        SKEW=config.skew if config.consumers > 1 else 0,
        EVEN=even,
        BIAS=has_bias,
        num_warps=4,
        maxnreg=REGISTERS if config.consumers == 1 else None,
    )


def product(x_MK: Tensor, weight_NK: Tensor, bias: Tensor | None, config: HopperConfig, length: int) -> Tensor:
    """[M, N] in the dtype of x. length: elements of K a segment, the last one may be shorter; a multiple of
    `block_k` where it is less than K. x and weight dense, see `fits`.

    Raises ValueError where length and configuration do not go together.
    """
    (M, K), N = x_MK.shape, weight_NK.shape[0]
    segments = -(-K // length)
    shortest = min(length, K - (segments - 1) * length)
    if (segments > 1 and length % config.block_k) or shortest < config.block_k * config.stages:
        raise ValueError(f"segments of {length} of {K} do not go with {config.label}")
    y_MN = torch.empty(M, N, dtype=x_MK.dtype, device=x_MK.device)
    if M == 0:
        return y_MN
    tiles_m, tiles_n = -(-M // (ROWS * config.consumers)), -(-N // config.block_n)
    items = tiles_m * tiles_n
    form = _form(config, segments, N % config.block_n == 0, bias is not None)
    form(
        (min(items, _multiprocessors(x_MK.device.index or 0)), 1, 1),
        (y_MN if bias is None else bias, y_MN),
        (M, N, -(-K // config.block_k), -(-length // config.block_k), items, tiles_m, tiles_n, config.group),
        (
            SwizzledBoxes(x_MK, M, K, K, (x_MK.dtype, ROWS, config.block_k)),
            SwizzledBoxes(weight_NK, N, K, K, (x_MK.dtype, config.block_n, config.block_k)),
        ),
    )
    return y_MN
