"""Run by test_interpreted.py in a process with TRITON_INTERPRET=1: kernels against contracts, one JSON line per
operator.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch

from samebits.kernels.registry import Operator, operator

CPU = torch.device("cpu")


def outputs(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def same(got: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> bool:
    """Whether all outputs have the shapes and the bits of the expected ones."""
    return all(
        g.shape == e.shape and torch.equal(g.view(torch.uint8), e.contiguous().view(torch.uint8))
        for g, e in zip(got, expected, strict=True)
    )


def forward_differences(op: Operator) -> tuple[int, list[str]]:
    """(elements compared, cases that differ)."""
    run, compared, wrong = op.module("triton").run, 0, []
    for dtype in (torch.float16, torch.float32):
        for shape in op.inputs.SMALL_SHAPES:
            for case in op.inputs.cases(shape, dtype, CPU, True):
                got, expected = outputs(run(**case.args)), outputs(op.contract(**case.args))
                compared += sum(e.numel() for e in expected)
                wrong += [] if same(got, expected) else [f"{dtype} {dict(shape)} {case.name}"]
    return compared, wrong


def backward_error(name: str) -> float | None:
    """Largest difference of the fast backward from the plain one, relative to the largest gradient, float32; None: the
    operator has no gradient."""
    op = operator(name)
    if not op.inputs.GRADS:
        return None
    fast, plain = op.module("triton").backward, op.module("contract").contract_backward
    args = op.inputs.draw(op.inputs.SMALL_SHAPES[0], 6, torch.float32, CPU, 3, False)
    grad = torch.randn(outputs(op.contract(**args))[0].shape, generator=torch.Generator().manual_seed(4))
    if name == "rms_norm":
        s = args["x"] + args["residual"]
        given: tuple[Any, ...] = (grad, s, args["weight"], args["eps"], torch.ones_like(s))
    elif name == "rotary":
        given = (args["q"], args["k"], args["positions"], args["cache"])
    elif name == "embedding":
        given = (grad, torch.tensor([3, 5, 3, 3, 66, 0]), 67)
    elif name == "logprob":
        _, top, total = op.module("contract").contract_with_state(**args)
        given = (grad, args["logits"], args["targets"], args["temperature"], top, total)
    else:
        given = (grad, args["gate"], args["up"])
    pairs = zip(outputs(fast(*given)), outputs(plain(*given)), strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name in sys.argv[1:]:
        compared, wrong = forward_differences(operator(name))
        print(
            json.dumps({"operator": name, "compared": compared, "wrong": wrong, "backward": backward_error(name)}),
            flush=True,
        )
