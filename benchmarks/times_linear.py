"""Rows of the linear operator for operators.py: against cuBLAS as PyTorch runs it, split-K allowed, weights cold in
L2."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from timing import copies_for, interleaved_us
from torch.nn import functional

from samebits.kernels.ops.linear import dispatch, inputs

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


def rows(per_us: tuple[float, float], only: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """One row per shape and M; only: shapes as NxK, all by default."""
    for shape in inputs.SHAPES:
        N, K = shape["n"], shape["k"]
        if only and f"{N}x{K}" not in only:
            continue
        copies = copies_for(2 * N * K, 64)
        weights = (torch.randn(copies, N, K, device="cuda") * K**-0.5).bfloat16()
        bias = torch.randn(N, device="cuda").bfloat16() if shape["bias"] else None
        for M in SIZES:
            x = torch.randn(M, K, device="cuda").bfloat16()
            used = range(copies if M <= 256 else min(copies, 4))
            arms = {
                "default": [partial(functional.linear, x, weights[i], bias) for i in used],
                "ours": [partial(dispatch.run, x, weights[i], bias) for i in used],
            }
            times = interleaved_us(arms, rounds=3, replays=3 if M <= 1024 else 2)
            floor = max(2 * (N * K + M * K + M * N) / per_us[0], 2 * M * N * K / per_us[1])
            choice = dispatch.choose(M, N, K, x.dtype, True, bias is not None, 0)
            yield {
                "op": "linear",
                "case": f"{N}x{K}{' bias' if bias is not None else ''}",
                "M": M,
                "us": times["ours"],
                "alternative_us": times["default"],
                "ratio": times["default"] / times["ours"],
                "floor_ratio": floor / times["ours"],
                "runs": choice.label,
            }
        del weights
        torch.cuda.empty_cache()
