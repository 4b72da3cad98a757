"""Rotary tables that are a function of the config alone: samebits' own one, and vLLM's on a GPU.

The table "samebits" in a trainer and the adapter into vLLM both read samebits' own.

vLLM takes powers and cosines on the GPU, transformers the powers on the CPU: their tables differ in last bits. This one
is a function of the model's config alone, computed in float64 on the CPU wherever it is used.

Legend: P positions, R rotated elements of a head.
"""

from __future__ import annotations

from functools import cache

import torch


@cache
def rotary_table(
    base: float, width: int, positions: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """cos in the first half of the columns, sin in the second [P, R], each rounded once to `dtype`.

    Args:
        base: theta of the config.
        width: R, the rotated elements of a head.
        positions: P, the longest sequence.
    """
    with torch.device("cpu"):
        exponent = torch.arange(0, width, 2, dtype=torch.float64) / width
        frequency = torch.tensor(float(base), dtype=torch.float64).pow(-exponent)
        angle_PR = torch.arange(positions, dtype=torch.float64)[:, None] * frequency
        table_PR = torch.cat([angle_PR.cos(), angle_PR.sin()], -1).float().to(dtype)
    return table_PR.to(device)


def vllm_table(base: float, width: int, positions: int, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """vLLM's own table [P, R]: powers, angles and cosines in float32 on the device (`RotaryEmbeddingBase` of 0.26.0).

    On a GPU its frequencies are others in last bits than those that transformers computes on the CPU.

    Args:
        base, width, positions: as in `rotary_table`.
    """
    with torch.device(device):
        frequency = 1.0 / (base ** (torch.arange(0, width, 2, dtype=torch.float) / width))
        angle_PR = torch.einsum("i,j -> ij", torch.arange(positions, dtype=torch.float), frequency)
        return torch.cat([angle_PR.cos(), angle_PR.sin()], -1).to(dtype)
