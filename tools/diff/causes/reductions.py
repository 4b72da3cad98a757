"""Sums over the last axis in a stated order, float32. Legend: T rows, H elements summed."""

from __future__ import annotations

import torch

from samebits.tools.diff.causes.observation import Option

STRIDED = (64, 128, 256, 512, 1024, 2048)
BLOCKS = (16, 32, 64, 128, 256, 512, 1024)


def row_sum_options(size: int) -> tuple[Option, ...]:
    """Orders worth trying for rows of this many elements; the first is PyTorch's own."""
    options = [Option("native", "PyTorch's own reduction")]
    options += [
        Option(f"lanes:{width}", f"{width} lanes stride over the row, their partial sums added in a tree")
        for width in STRIDED
        if width < size
    ]
    options += [
        Option(f"blocks:{width}", f"blocks of {width} elements summed one after the other")
        for width in BLOCKS
        if width < size
    ]
    options += [
        Option("tree", "pairwise tree"),
        Option("ascending", "one accumulator, ascending"),
        Option("float64", "summed in float64", cause="precision"),
    ]
    return tuple(options)


def row_sum(x_TH: torch.Tensor, order: str, *, mean: bool = False) -> torch.Tensor:
    """Sum (or mean) over the last axis, [T, 1], in x's dtype."""
    size = x_TH.shape[-1]
    if order == "native":
        return x_TH.mean(-1, keepdim=True) if mean else x_TH.sum(-1, keepdim=True)
    if order == "float64":
        total = x_TH.double().sum(-1, keepdim=True)
        return (total / size if mean else total).to(x_TH.dtype)
    name, _, width = order.partition(":")
    if name == "lanes":
        parts = chain(padded(x_TH, int(width)).unbind(-2))
        total = tree(parts)
    elif name == "blocks":
        parts = padded(x_TH, int(width)).sum(-1)
        total = chain(parts.unbind(-1)).unsqueeze(-1)
    elif name == "tree":
        total = tree(x_TH)
    else:
        total = chain(x_TH.unbind(-1)).unsqueeze(-1)
    return total / size if mean else total


def padded(x_TH: torch.Tensor, width: int) -> torch.Tensor:
    """[..., ceil(H / width), width], zeros behind the end."""
    missing = -x_TH.shape[-1] % width
    return torch.nn.functional.pad(x_TH, (0, missing)).view(*x_TH.shape[:-1], -1, width)


def chain(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """((a + b) + c) + ..."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def tree(x: torch.Tensor) -> torch.Tensor:
    """Halves added to each other until one element is left; [..., 1]."""
    while x.shape[-1] > 1:
        half = (x.shape[-1] + 1) // 2
        low, high = x[..., :half], x[..., half:]
        x = low + torch.nn.functional.pad(high, (0, half - high.shape[-1]))
    return x
