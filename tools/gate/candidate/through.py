"""Gradients by autograd: the judge takes the reference's, the process under test those of the library's operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from samebits.tools.gate.candidate.compare import outputs_of


def through(
    function: Callable[..., Any], args: dict[str, Any], names: list[str], grads: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """Gradients by autograd; of float64 for the reference, through which nothing is rounded until the end."""
    leaves = {n: args[n].detach().clone() for n in names}
    wide = {n: leaf.double() if function.__name__ == "reference" else leaf for n, leaf in leaves.items()}
    for leaf in wide.values():
        leaf.requires_grad_()
    outputs = outputs_of(function(**{**args, **wide}))
    return torch.autograd.grad(
        outputs, [wide[n] for n in names], [g.to(o.dtype) for g, o in zip(grads, outputs, strict=True)]
    )
