"""The legs under torch.compile and CUDA graphs, and the time."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from samebits.kernels.ops.rows import Args
from samebits.tools.gate.candidate.compare import outputs_of
from samebits.tools.gate.candidate.legs import same_bits
from samebits.tools.gate.candidate.plan import CannotRunError, Evidence, Plan, RedError

SIZES = (3, 8)
"""Rows of the calls under torch.compile and CUDA graphs."""
TIMED_ROWS = {"cuda": (1, 8, 64, 256, 2048), "cpu": (1, 64)}
COLD_BYTES = 256 << 20
"""Inputs are rotated through this much memory, so that the L2 cache (50 MiB on Hopper) does not hold them."""


def as_library_operator(plan: Plan, args: Args) -> Callable[..., Any]:
    """What is under test as an opaque torch.library operator, which is how adapters install a candidate."""
    if plan.candidate is None and plan.run is plan.operator.op:
        return plan.operator.op
    kinds = {torch.Tensor: "Tensor", type(None): "Tensor?", float: "float", int: "int", bool: "bool"}
    takes = ", ".join(
        f"{kinds[type(value)] if not isinstance(value, torch.Tensor) else 'Tensor'} {name}"
        for name, value in args.items()
    )
    count = len(plan.call(args, "under torch.compile"))
    gives = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
    form = "_".join("n" if value is None else type(value).__name__[0].lower() for value in args.values())
    run = plan.run

    def body(**given: Any) -> Any:
        assert run is not None
        found = outputs_of(run(**given))
        return found[0] if count == 1 else found

    def entry(*given: Any) -> Any:
        return body(**dict(zip(args, given, strict=True)))

    wrapped = torch.library.custom_op(
        f"samebits_gate::{plan.operator.name}_{form}", entry, mutates_args=(), schema=f"({takes}) -> {gives}"
    )
    wrapped.register_fake(lambda *given: plan.operator.op(**dict(zip(args, given, strict=True))))
    return lambda **given: wrapped(*given.values())


def compiled(plan: Plan) -> Evidence:
    """Under torch.compile, whole graph, with changing row counts; strides as declared."""
    backend = "inductor" if plan.device.type == "cuda" else "aot_eager"
    checked = 0
    for shape, dtype, text in plan.smaller_settings():
        torch._dynamo.reset()
        calls = [plan.draw(shape, rows, dtype, 61 + rows) for rows in SIZES]
        inner = as_library_operator(plan, calls[0])

        def function(given: Args, inner: Callable[..., Any] = inner) -> tuple[torch.Tensor, ...]:
            return tuple(out.clone() for out in outputs_of(inner(**given)))

        graph = torch.compile(function, backend=backend, fullgraph=True)
        for args in calls:
            eager = plan.call(args, text)
            for i, out in enumerate(eager):
                if not out.is_contiguous():
                    raise RedError(
                        f"{text}: output {i} has strides {out.stride()}, declared is contiguous: "
                        "a compiled graph reads it wrongly"
                    )
            try:
                got = graph(args)
            except RedError:
                raise
            except Exception as error:
                raise RedError(
                    f"{text}: under torch.compile ({backend}): {type(error).__name__}: {str(error)[:800]}"
                ) from error
            same_bits(got, eager, text, f"other bits under torch.compile ({backend})")
            checked += 1
    return Evidence(f"equal bits under torch.compile, backend {backend}, whole graph, changing row counts", checked)


def graphs(plan: Plan) -> Evidence:
    """Captured in a CUDA graph and replayed on other inputs."""
    if plan.device.type != "cuda":
        raise CannotRunError("CUDA graphs need a CUDA device")
    checked = 0
    for shape, dtype, text in plan.settings():
        args = plan.draw(shape, SIZES[1], dtype, 71)
        static = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in args.items()}
        plan.call(static, text)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                captured = outputs_of(plan.run(**static)) if plan.run else ()
        except Exception as error:
            raise RedError(
                f"{text}: cannot be captured in a CUDA graph: {type(error).__name__}: {str(error)[:500]}"
            ) from error
        for seed in (71, 72, 73):
            fresh = plan.draw(shape, SIZES[1], dtype, seed)
            for key, value in fresh.items():
                if isinstance(value, torch.Tensor):
                    static[key].copy_(value)
            graph.replay()
            torch.cuda.synchronize()
            same_bits(captured, plan.call(fresh, text), text, "other bits when replayed from a CUDA graph")
            checked += 1
    return Evidence("captured once and replayed on three inputs per dtype and shape", checked)


def timing(plan: Plan) -> Evidence:
    """Time of the replaced operator over the time of what is under test. Runs last: only what is right is timed."""
    if plan.interpreted:
        raise CannotRunError("Triton is interpreted here; its time says nothing")
    if plan.is_its_contract:
        raise CannotRunError("on CPU the library's operator is its contract, written to be plain and not fast")
    numbers: dict[str, float] = {}
    for shape, dtype, text in plan.settings():
        for rows in TIMED_ROWS[plan.device.type]:
            args = plan.draw(shape, rows, dtype, 81)
            ours = seconds(plan, lambda given: plan.run(**given) if plan.run else None, args)
            old = min(seconds(plan, function, args) for function in alternatives(plan))
            same_bits(plan.call(args, text), plan.expected(args), text, "other bits after it was timed")
            numbers[f"{text}, {rows} rows: us"] = ours * 1e6
            numbers[f"{text}, {rows} rows: ratio"] = old / ours
    ratios = [v for k, v in numbers.items() if k.endswith("ratio")]
    mean = math.exp(statistics.fmean(math.log(r) for r in ratios))
    claim = plan.candidate.speed if plan.candidate else None
    if claim is not None and mean < claim:
        raise RedError(
            f"claims {claim:.3f} of the speed of the replaced operator, has {mean:.3f}, geometric mean of {len(ratios)}"
        )
    what = (
        "the faster of the replaced operator as it is and compiled"
        if plan.device.type == "cuda"
        else "the replaced operator"
    )
    return Evidence(
        f"time of {what} / time of this: geometric mean {mean:.3f}, lowest {min(ratios):.3f}",
        len(ratios),
        {"mean": mean, "lowest": min(ratios), **numbers},
    )


def alternatives(plan: Plan) -> Iterator[Callable[[Args], Any]]:
    """The replaced operator, and on CUDA also as torch.compile makes it."""
    yield lambda given: plan.operator.replaced(**given)
    if plan.device.type == "cuda":
        torch._dynamo.reset()
        fused = torch.compile(plan.operator.replaced, dynamic=False)
        yield lambda given: fused(**given)


def seconds(plan: Plan, function: Callable[[Args], Any], args: Args) -> float:
    """Median seconds of one call; on CUDA from replays of a graph over rotated inputs."""
    if plan.device.type == "cpu":
        return median_of(lambda: function(args), time.perf_counter, 20)
    size = sum(v.numel() * v.dtype.itemsize for v in args.values() if isinstance(v, torch.Tensor))
    copies = max(2, min(50, COLD_BYTES // max(size, 1)))
    inputs = [{k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in args.items()} for _ in range(copies)]
    function(inputs[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    calls = max(copies, 20)  # enough that the start of the graph itself does not count
    with torch.cuda.graph(graph):
        for i in range(calls):
            function(inputs[i % copies])
    graph.replay()
    samples: list[float] = []
    for _ in itertools.repeat(None, 7):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        samples.append(start.elapsed_time(end) / 1e3 / calls)
    return statistics.median(samples)


def median_of(call: Callable[[], Any], clock: Callable[[], float], count: int) -> float:
    """Median of `count` timed calls after two untimed ones."""
    samples: list[float] = []
    for i in range(count + 2):
        start = clock()
        call()
        if i >= 2:
            samples.append(clock() - start)
    return statistics.median(samples)
