"""The legs that compare with float64, by what the replaced operator itself achieves."""

from __future__ import annotations

import math
from typing import Any

import torch

from samebits.tools.gate.candidate.compare import outputs_of
from samebits.tools.gate.candidate.legs import same_bits
from samebits.tools.gate.candidate.plan import CannotRunError, Evidence, Outputs, Plan, RedError, relative_errors
from samebits.tools.gate.candidate.through import through

WORST_RATIO = 1.05
"""Error of the candidate / error of the operator it replaces. Never below what one correct rounding of the exact result
costs.
"""
GRADIENT_ROWS = 16


def accuracy(plan: Plan) -> Evidence:
    """Error against float64 not above that of the operator it replaces."""
    numbers: dict[str, float] = {}
    checked = 0
    for shape, dtype, text in plan.settings():
        calls = [c.args for c in plan.operator.inputs.cases(shape, dtype, plan.device, plan.interpreted) if c.finite]
        calls += [plan.draw(shape, 16 if plan.interpreted else 64, dtype, seed) for seed in (41, 42)]
        squares: list[list[list[torch.Tensor]]] = [[], [], []]
        for args in calls:
            exact = outputs_of(plan.operator.reference(**args))
            got = plan.call(args, text)
            rounded = tuple(e.to(g.dtype) for e, g in zip(exact, got, strict=True))
            for kind, outputs in zip(squares, (got, outputs_of(plan.operator.replaced(**args)), rounded), strict=True):
                kind.append([relative_errors(out, e) for out, e in zip(outputs, exact, strict=True)])
        own, old, ideal = (root_mean(kind) for kind in squares)
        for output, (a, b, c) in enumerate(zip(own, old, ideal, strict=True)):
            judge(a, b, c, f"{text}, output {output}", numbers)
        checked += len(calls)
    worst = max(numbers.values())
    return Evidence(
        f"worst ratio to the replaced operator's error {worst:.4f} (bar {WORST_RATIO})",
        checked,
        {"worst": worst, **numbers},
    )


def root_mean(calls: list[list[torch.Tensor]]) -> list[float]:
    """Root of the mean squared relative error over all rows of all calls, per output."""
    return [math.sqrt(float(torch.cat(parts).mean())) for parts in zip(*calls, strict=True)]


def judge(own: float, old: float, ideal: float, text: str, numbers: dict[str, float]) -> None:
    """Record the ratio; raise RedError above the bar or when not finite."""
    bar = max(old, ideal)
    ratio = 0.0 if own == 0 else own / bar if bar > 0 else math.inf
    numbers[text] = ratio
    if not own <= WORST_RATIO * bar:
        raise RedError(
            f"{text}: error against float64 {own:.3e}, the replaced operator has {old:.3e}, one rounding {ideal:.3e}: "
            f"ratio {ratio:.3f} above {WORST_RATIO}"
        )


def gradient(plan: Plan) -> Evidence:
    """Gradients against float64, and the same from run to run."""
    if plan.candidate is not None and not plan.candidate.backward:
        raise CannotRunError(
            "the candidate claims no backward; the library's own is used with it, and is gated with the operator"
        )
    if not plan.operator.inputs.GRADS:
        raise CannotRunError(f"{plan.operator.name} has no gradient")
    numbers: dict[str, float] = {}
    checked = 0
    for shape, dtype, text in plan.smaller_settings():
        args = plan.draw(shape, GRADIENT_ROWS, dtype, 51, False)
        names = [n for n in plan.operator.inputs.GRADS if args[n] is not None]
        exact_outputs = outputs_of(plan.operator.reference(**args))
        forms = plan.call(args, text)
        rng = torch.Generator().manual_seed(52)
        grads = tuple(
            torch.randn(e.shape, generator=rng).to(device=plan.device, dtype=f.dtype)
            for e, f in zip(exact_outputs, forms, strict=True)
        )
        exact = through(plan.operator.reference, args, names, grads)
        old = through(plan.operator.replaced, args, names, grads)
        got = from_link(plan, args, names, grads, text)
        again = from_link(plan, args, names, grads, text)
        same_bits(again, got, text, "the gradient differs from run to run")
        for name, g, o, e in zip(names, got, old, exact, strict=True):
            own_error, old_error, one_rounding = (
                float(((x.double() - e).norm() / e.norm()).item()) for x in (g, o, e.to(g.dtype))
            )
            judge(own_error, old_error, one_rounding, f"{text}, gradient of {name}", numbers)
            checked += 1
    worst = max(numbers.values())
    return Evidence(
        f"worst ratio to the replaced operator's gradient error {worst:.4f} (bar {WORST_RATIO})",
        checked,
        {"worst": worst, **numbers},
    )


def from_link(plan: Plan, args: dict[str, Any], names: list[str], grads: Outputs, text: str) -> Outputs:
    """The gradients from the process under test: a candidate's own `backward(grads, **args)`, or autograd through the
    library's operator; one per differentiable argument.
    """
    given = {f"grad {i}": grad for i, grad in enumerate(grads)}
    found, _, _ = plan.link.ask_outputs("gradient", f"{text}: backward", args=args, grads=given, names=names)
    if len(found) != len(names) or any(g.shape != args[n].shape for g, n in zip(found, names, strict=True)):
        raise RedError(f"{text}: backward must give the gradients of {', '.join(names)} in their shapes")
    return found
