"""A check of interpreted_heavy.py: the linear kernels with segments against the contract. M rows, N outputs, K reduced
in S segments of L.
"""

from __future__ import annotations

import torch

from samebits.kernels.ops.linear import inputs
from samebits.kernels.ops.linear.contract import contract, contract_wide
from samebits.kernels.ops.linear.dispatch import Choice, launch, run, run_wide
from samebits.kernels.ops.linear.segments import segments
from samebits.kernels.ops.linear.segments_triton import fold, split, walk
from samebits.kernels.ops.linear.triton import Config

CPU = torch.device("cpu")
CONFIGS = (Config(16, 16, 512, 2, 2), Config(8, 16, 1024, 2, 3, True), Config(64, 16, 2048, 4, 2))
SHAPE, ODD = {"n": 8, "k": 8192, "bias": 1}, {"n": 17, "k": 9216, "bias": 0}
K, S, L = 8192, 4, 2048
WAYS = ("walk", "split", "walk tma", "split tma")


def differing(a: torch.Tensor, b: torch.Tensor) -> int:
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    return int((a.contiguous().view(torch.uint8) != b.contiguous().view(torch.uint8)).sum())


def integers() -> dict[str, int]:
    """Small integers, which have one sum in every order: tiles, masks, segment bounds, bias, the rounding."""
    compared = wrong = planted = 0
    half, single = torch.float16, torch.float32
    for shape, dtype, rows in ((SHAPE, half, 1), (SHAPE, half, 17), (ODD, half, 7), (SHAPE, single, 7)):
        x, weight, bias = given = tuple(inputs.draw(shape, rows, dtype, CPU, rows, True).values())
        expected, wide = contract(*given), contract_wide(*given)
        for config in CONFIGS if dtype == half else ():
            for way in WAYS[: 2 if config.swap else 4]:
                compared += expected.numel()
                wrong += differing(launch(Choice(config, way=way), *given), expected)
        wrong += differing(run(*given), expected)
        if dtype == single:
            continue
        wrong += differing(run_wide(*given), wide)
        last = weight.clone()
        last[:, -1] += 1  # a kernel that forgets the last K must be seen
        planted += differing(launch(Choice(CONFIGS[2], way="split"), x, last, bias), expected)
    return {"compared": compared, "wrong": wrong, "planted": planted}


def orders() -> dict[str, int]:
    """Values whose float32 sum depends on the order of the fold and on the bounds of the segments.

    A segment holds one product or two ones, so the interpreter's order within a segment says nothing.
    """
    big = float(2**24)
    x, weight = torch.zeros(4, K).half(), torch.ones(8, K).half()
    root = weight[:, 5] = weight[:, 3 * L + 5] = 4096.0
    # Ascending, the two ones are lost beside the large product, one after the other. Pairs or descending keep one.
    x[0, [5, L + 5, 2 * L + 5, 3 * L + 5]] = torch.tensor([root, 1, 1, -root]).half()
    # A segment that holds both ones keeps them; one chain over K loses them.
    x[1, [5, L + 5, 2 * L - 5]] = torch.tensor([root, 1, 1]).half()
    # Each side of a bound: a bound one step off puts both ones into one segment.
    x[2, [5, 2 * L - 1, 2 * L]] = torch.tensor([root, 1, 1]).half()
    # The large product last: what came before is added up already.
    x[3, [6, L + 5, 3 * L + 5]] = torch.tensor([1, 1, root]).half()
    expected = torch.tensor([0.0, big + 2, big, big + 2])[:, None].repeat(1, 8)
    given = (x, weight, None)
    parts = torch.stack([a.float() @ b.float().T for a, b in zip(x.split(L, 1), weight.split(L, 1), strict=True)])
    right = {
        "contract": contract_wide(*given),
        "fold": fold(parts, None, torch.float32),
        **{way: launch(Choice(CONFIGS[0], way=way), *given, torch.float32) for way in WAYS},
    }
    moved = (x.roll(-1, 1), weight.roll(-1, 1), None)
    planted = {
        "descending": fold(parts.flip(0), None, torch.float32),
        "pairs": fold(torch.stack([parts[0] + parts[1], parts[2] + parts[3]]), None, torch.float32),
        "one chain": walk(*given, CONFIGS[0], 1, torch.float32),
        "two segments": split(*given, CONFIGS[0], 2, torch.float32),
        "bounds off by one": walk(*moved, CONFIGS[0], S, torch.float32),
    }
    found = {name: differing(y, expected) for name, y in right.items()}
    return found | {f"planted {name}": differing(y, expected) for name, y in planted.items()}


def zero_signs() -> int:
    """Sums of -0.0 are added to +0, as in a walk."""
    return differing(fold(torch.full((4, 2, 3), -0.0), None, torch.float32), torch.zeros(2, 3))


def linear_segments() -> dict[str, object]:
    """The check of interpreted_heavy.py."""
    assert segments(8, K) == S
    return {"check": "linear_segments", "integers": integers(), "orders": orders(), "zero signs": zero_signs()}
