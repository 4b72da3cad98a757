"""A check of interpreted_heavy.py: the linear kernels with segments against the contract. M rows, N outputs, K reduced
in S segments of L.
"""

from __future__ import annotations

import torch

from samebits.kernels.ops.linear import arrivals, inputs
from samebits.kernels.ops.linear.contract import contract, contract_wide
from samebits.kernels.ops.linear.dispatch import TRITON_WAYS, Choice, launch, run, run_wide
from samebits.kernels.ops.linear.segments import SEGMENTS, length
from samebits.kernels.ops.linear.segments_triton import fold
from samebits.kernels.ops.linear.triton import Config, chain

CPU = torch.device("cpu")
CONFIGS = (Config(16, 16, 512, 2, 2), Config(8, 16, 1024, 2, 3, True), Config(64, 16, 2048, 4, 2))
SHAPE, ODD = {"n": 8, "k": 8704, "bias": 1}, {"n": 17, "k": 8200, "bias": 0}
ODDEST = {"n": 3, "k": 8193, "bias": 1}
K, L = 8704, 2176


def differing(a: torch.Tensor, b: torch.Tensor) -> int:
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    return int((a.contiguous().view(torch.uint8) != b.contiguous().view(torch.uint8)).sum())


def integers() -> dict[str, int]:
    """Small integers, which have one sum in every order: tiles, masks, segment bounds, bias, the rounding."""
    compared = wrong = planted = 0
    half, single = torch.float16, torch.float32
    cases = ((SHAPE, half, 17), (ODD, half, 7), (ODDEST, half, 2), (SHAPE, single, 7))
    for shape, dtype, rows in cases:
        x, weight, bias = given = tuple(inputs.draw(shape, rows, dtype, CPU, rows, True).values())
        expected, wide = contract(*given), contract_wide(*given)
        for config in CONFIGS if dtype == half else ():
            ways = TRITON_WAYS if config == CONFIGS[0] else ("join", "walk", "join tma")
            for way in ways if shape["k"] % 8 == 0 else ways[:2]:
                compared += expected.numel()
                wrong += differing(launch(Choice(config, way=way), *given), expected)
        wrong += differing(run(*given), expected) + differing(run_wide(*given), wide)
        if dtype == single:
            continue
        for place in (-1, length(shape["k"]) - 1, length(shape["k"])):
            missed = weight.clone()
            missed[:, place] += 1  # a kernel that forgets the last K, or one beside a bound, must be seen
            planted += differing(launch(Choice(CONFIGS[2], way="join"), x, missed, bias), expected) > 0
    many = tuple(
        inputs.draw({"n": 20, "k": K, "bias": 1}, 300, half, CPU, 9, True).values()
    )  # more than a group of tiles
    for way in ("walk tma", "join tma"):
        wrong += differing(launch(Choice(CONFIGS[0], way=way), *many), contract(*many))
    return {"compared": compared, "wrong": wrong, "planted": planted, "unsettled": int(not arrivals.settled())}


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
        **{way: launch(Choice(CONFIGS[0], way=way), *given, torch.float32) for way in TRITON_WAYS},
    }
    moved = (x.roll(-1, 1), weight.roll(-1, 1), None)
    planted = {
        "descending": fold(parts.flip(0), None, torch.float32),
        "pairs": fold(torch.stack([parts[0] + parts[1], parts[2] + parts[3]]), None, torch.float32),
        "one chain": chain(*given, CONFIGS[0], torch.float32),
        **{
            f"bounds off by one, {way}": launch(Choice(CONFIGS[0], way=way), *moved, torch.float32)
            for way in TRITON_WAYS
        },
    }
    found = {name: differing(y, expected) for name, y in right.items()}
    return found | {f"planted {name}": differing(y, expected) for name, y in planted.items()}


def signs_of_zero() -> int:
    """The fold begins with the first sum itself: four times -0.0 is -0.0."""
    minus = torch.full((4, 2, 3), -0.0)
    return differing(fold(minus, None, torch.float32), minus[0])


def miscounted() -> int:
    """A counter that is not zero at the start makes an earlier program fold: seen, so a shared counter would be."""
    given = tuple(inputs.draw(SHAPE, 5, torch.float16, CPU, 5, True).values())
    expected = contract(*given)
    counters = arrivals.arrivals(CPU, 1)
    assert counters is not None
    counters[0] = 1
    found = differing(launch(Choice(CONFIGS[0], way="join"), *given), expected)
    counters.zero_()
    return found


def linear_segments() -> dict[str, object]:
    """The check of interpreted_heavy.py."""
    assert (length(K), SEGMENTS) == (L, 4)
    return {
        "check": "linear_segments",
        "integers": integers(),
        "orders": orders(),
        "signs of zero": signs_of_zero(),
        "miscounted": miscounted(),
    }
