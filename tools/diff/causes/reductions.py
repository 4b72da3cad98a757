"""Sums over the last axis in a stated order, float32. Legend: T rows, H elements summed."""

from __future__ import annotations

import torch

from samebits.tools.diff.causes.observation import Option

STRIDED = (64, 128, 256, 512, 1024, 2048)
BLOCKS = (16, 32, 64, 128, 256, 512, 1024)
VECTOR, WARP = 8, 32
"""16-bit elements of one 16-byte load, threads of a warp."""
THREADS = (256, 512, 1024)


def row_sum_options(size: int, device: str = "cpu") -> tuple[Option, ...]:
    """Orders worth trying for rows of this many elements; the first is PyTorch's own."""
    options = [Option("native", "PyTorch's own reduction")]
    if device != "cpu" and size % VECTOR == 0:
        for threads in sorted({min(threads, size // VECTOR) for threads in THREADS}):
            words = f"a block of {threads} threads, each with vectors of {VECTOR} elements, warps by neighbours"
            options.append(Option(f"block:{threads}", words))
            options.append(Option(f"block2:{threads}", f"{words}, elements two by two"))
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
    elif name in ("block", "block2"):
        total = block_sum(x_TH, int(width), 1 if name == "block" else 2)
    elif name == "blocks":
        parts = padded(x_TH, int(width)).sum(-1)
        total = chain(parts.unbind(-1)).unsqueeze(-1)
    elif name == "tree":
        total = tree(x_TH)
    else:
        total = chain(x_TH.unbind(-1)).unsqueeze(-1)
    return total / size if mean else total


def block_sum(x_TH: torch.Tensor, threads: int, together: int) -> torch.Tensor:
    """The order of a CUDA block that loads vectors and reduces by cub::BlockReduce (warp reductions), [..., 1].

    A thread adds up its vectors, element by element or two elements at a time; a warp adds lanes 1, 2, 4, 8 and 16
    apart; the first thread adds the warps in ascending order. vLLM's RMS norms reduce so (csrc/layernorm_kernels.cu).
    """
    rows = x_TH.shape[:-1]
    vector = padded(x_TH, threads * VECTOR).view(*rows, -1, threads, VECTOR // together, together)
    terms = vector.sum(-1) if together == 1 else vector[..., 0] + vector[..., 1]
    steps = terms.movedim(-2, -1).flatten(-3, -2)
    lane = chain(steps.unbind(-2))
    lane = padded(lane, WARP)
    while lane.shape[-1] > 1:
        lane = lane[..., 0::2] + lane[..., 1::2]
    return chain(lane[..., 0].unbind(-1)).unsqueeze(-1)


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
