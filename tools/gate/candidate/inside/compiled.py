"""A candidate under torch.compile, in a CUDA graph, and made ready to be timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from samebits.kernels.ops.rows import Args
from samebits.kernels.registry import Operator
from samebits.tools.gate.candidate.compare import outputs_of

COLD_BYTES = 256 << 20
"""Inputs are rotated through this much memory, so that the L2 cache (50 MiB on Hopper) does not hold them."""
Run = Callable[..., Any]


def copied(args: Args) -> Args:
    """The call with tensors of its own."""
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in args.items()}


def as_library_operator(operator: Operator, run: Run, args: Args) -> Run:
    """A callable as an opaque torch.library operator, which is how adapters install a candidate."""
    kinds = {torch.Tensor: "Tensor", type(None): "Tensor?", float: "float", int: "int", bool: "bool"}
    takes = ", ".join(
        f"{kinds[type(value)] if not isinstance(value, torch.Tensor) else 'Tensor'} {name}"
        for name, value in args.items()
    )
    count = len(outputs_of(run(**args)))
    gives = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
    form = "_".join("n" if value is None else type(value).__name__[0].lower() for value in args.values())

    def entry(*given: Any) -> Any:
        found = outputs_of(run(**dict(zip(args, given, strict=True))))
        return found[0] if count == 1 else found

    wrapped = torch.library.custom_op(
        f"samebits_gate::{operator.name}_{form}", entry, mutates_args=(), schema=f"({takes}) -> {gives}"
    )
    wrapped.register_fake(lambda *given: operator.op(**dict(zip(args, given, strict=True))))
    return lambda **given: wrapped(*given.values())


class Compiled:
    """An operator under torch.compile, whole graph."""

    def __init__(self, inner: Run, backend: str) -> None:
        torch._dynamo.reset()

        def function(given: Args) -> tuple[torch.Tensor, ...]:
            return tuple(out.clone() for out in outputs_of(inner(**given)))

        self.graph = torch.compile(function, backend=backend, fullgraph=True)

    def __call__(self, args: Args) -> tuple[torch.Tensor, ...]:
        return outputs_of(self.graph(args))


class Graph:
    """A callable in a CUDA graph, with inputs of its own that every replay fills."""

    def __init__(self, run: Run, args: Args) -> None:
        self.static = copied(args)
        run(**self.static)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = outputs_of(run(**self.static))

    def replay(self, args: Args) -> tuple[torch.Tensor, ...]:
        """The outputs for these inputs."""
        for key, value in args.items():
            if isinstance(value, torch.Tensor):
                self.static[key].copy_(value)
        self.graph.replay()
        torch.cuda.synchronize()
        return self.outputs


class Timed:
    """A callable made ready to be timed: `timed(n)` makes n runs of `calls` calls each and waits for their end.

    On CUDA a run is a replay of one graph whose calls rotate through inputs that the L2 cache does not hold.
    """

    def __init__(self, run: Run, args: Args, device: torch.device) -> None:
        self.device = device
        self.last: Any = run(**args)
        if device.type == "cpu":
            self.calls, self.args, self.run = 1, args, run
            return
        size = sum(v.numel() * v.dtype.itemsize for v in args.values() if isinstance(v, torch.Tensor))
        copies = max(2, min(50, COLD_BYTES // max(size, 1)))
        inputs = [copied(args) for _ in range(copies)]
        run(**inputs[0])
        torch.cuda.synchronize()
        self.calls = max(copies, 20)  # enough that the start of the graph itself does not count
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for i in range(self.calls):
                self.last = run(**inputs[i % copies])
        self.inputs = inputs

    def __call__(self, count: int) -> None:
        for _ in range(count):
            if self.device.type == "cpu":
                self.last = self.run(**self.args)
            else:
                self.graph.replay()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
