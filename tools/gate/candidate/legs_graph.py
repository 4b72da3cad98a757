"""The legs under torch.compile and CUDA graphs, and the time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import torch

from samebits.kernels.ops.rows import Args
from samebits.tools.gate.candidate.inside.compiled import Timed
from samebits.tools.gate.candidate.legs import same_bits
from samebits.tools.gate.candidate.plan import CannotRunError, Evidence, Plan, RedError

SIZES = (3, 8)
"""Rows of the calls under torch.compile and CUDA graphs."""
TIMED_ROWS = {"cuda": (1, 8, 64, 256, 2048), "cpu": (1, 64)}
SAMPLES = 9
SAMPLE_S = {"cuda": 0.05, "cpu": 0.01}
"""A sample is at least so long: the message that ends it takes under 0.2 ms."""


def compiled(plan: Plan) -> Evidence:
    """Under torch.compile, whole graph, with changing row counts; strides as declared."""
    backend = "inductor" if plan.device.type == "cuda" else "aot_eager"
    checked = 0
    for shape, dtype, text in plan.smaller_settings():
        for rows in SIZES:
            args = plan.draw(shape, rows, dtype, 61 + rows)
            eager, strides, _ = plan.link.ask_outputs("call", text, args=args)
            for i, (out, steps) in enumerate(zip(eager, strides, strict=True)):
                if not is_contiguous(out.shape, steps):
                    raise RedError(
                        f"{text}: output {i} has strides {steps}, declared is contiguous: a compiled graph reads it "
                        "wrongly"
                    )
            where = f"{text}: under torch.compile ({backend})"
            got, _, _ = plan.link.ask_outputs("compiled", where, args=args, new=rows == SIZES[0], backend=backend)
            same_bits(got, eager, text, f"other bits under torch.compile ({backend})")
            checked += 1
    return Evidence(f"equal bits under torch.compile, backend {backend}, whole graph, changing row counts", checked)


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """As torch says it: dims of one element may have any stride."""
    due = 1
    for n, step in zip(reversed(shape), reversed(strides), strict=True):
        if n == 0:
            return True
        if n != 1 and step != due:
            return False
        due *= n
    return True


def graphs(plan: Plan) -> Evidence:
    """Captured in a CUDA graph and replayed on other inputs."""
    if plan.device.type != "cuda":
        raise CannotRunError("CUDA graphs need a CUDA device")
    checked = 0
    for shape, dtype, text in plan.settings():
        for seed in (71, 72, 73):
            args = plan.draw(shape, SIZES[1], dtype, seed)
            what = (
                f"{text}: cannot be captured in a CUDA graph" if seed == 71 else f"{text}: replayed from a CUDA graph"
            )
            got, _, _ = plan.link.ask_outputs("captured", what, args=args, new=seed == 71)
            same_bits(got, plan.call(args, text), text, "other bits when replayed from a CUDA graph")
            checked += 1
    return Evidence("captured once and replayed on three inputs per dtype and shape", checked)


def timing(plan: Plan) -> Evidence:
    """Time of the replaced operator over the time of what is under test. Runs last: only what is right is timed."""
    if plan.interpreted:
        raise CannotRunError("Triton is interpreted here; its time says nothing")
    if plan.is_its_contract:
        raise CannotRunError("on CPU the library's operator is its contract, written to be plain and not fast")
    numbers: dict[str, float] = {}
    found: list[Ratio] = []
    for shape, dtype, text in plan.settings():
        for rows in TIMED_ROWS[plan.device.type]:
            args = plan.draw(shape, rows, dtype, 81)
            ours = seconds_inside(plan, args, text)
            old = min((seconds_here(plan, function, args) for function in alternatives(plan)), key=statistics.median)
            same_bits(plan.call(args, text), plan.expected(args), text, "other bits after it was timed")
            found.append(Ratio.of(old, ours))
            numbers[f"{text}, {rows} rows: us"] = statistics.median(ours) * 1e6
            numbers |= {f"{text}, {rows} rows: {name}": value for name, value in found[-1].named().items()}
    mean = Ratio.mean(found)
    said = f"{mean.middle:.3f} (samples: {mean.low:.3f} to {mean.high:.3f}), geometric mean of {len(found)}"
    claim = plan.candidate.speed if plan.candidate else None
    if claim is not None and mean.high < claim:
        raise RedError(f"claims {claim:.3f} of the speed of the replaced operator, has {said}")
    if claim is not None and mean.low < claim:
        raise CannotRunError(
            f"no verdict: claims {claim:.3f} of the speed of the replaced operator, and the noise of "
            f"this machine reaches over it: {said}"
        )
    what = (
        "the faster of the replaced operator as it is and compiled"
        if plan.device.type == "cuda"
        else "the replaced operator"
    )
    lowest = min(ratio.middle for ratio in found)
    return Evidence(
        f"time of {what} / time of this: {said}, lowest {lowest:.3f}",
        len(found),
        {"mean": mean.middle, "mean low": mean.low, "mean high": mean.high, "lowest": lowest, **numbers},
    )


@dataclass(slots=True, frozen=True)
class Ratio:
    """Time of the replaced operator over the time of this one: of the medians, and of any two samples."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, old: list[float], ours: list[float]) -> Self:
        """From the samples of both, seconds."""
        return cls(statistics.median(old) / statistics.median(ours), min(old) / max(ours), max(old) / min(ours))

    @classmethod
    def mean(cls, ratios: list[Self]) -> Self:
        """Geometric means."""
        return cls(
            *(
                math.exp(statistics.fmean(math.log(value) for value in values))
                for values in zip(*((ratio.middle, ratio.low, ratio.high) for ratio in ratios), strict=True)
            )
        )

    def named(self) -> dict[str, float]:
        """For the report."""
        return {"ratio": self.middle, "ratio low": self.low, "ratio high": self.high}


def alternatives(plan: Plan) -> Iterator[Callable[..., object]]:
    """The replaced operator, and on CUDA also as torch.compile makes it."""
    yield plan.operator.replaced
    if plan.device.type == "cuda":
        torch._dynamo.reset()
        yield torch.compile(plan.operator.replaced, dynamic=False)


def seconds_inside(plan: Plan, args: Args, text: str) -> list[float]:
    """Seconds of one call of what is under test, sample by sample, by this clock; what it gave must be right."""
    calls = plan.link.ask("prepare", f"{text}: made ready to be timed", args=args).get("calls")
    if not isinstance(calls, int) or not 1 <= calls <= 1000:
        raise RedError(f"{text}: its process answers out of turn")

    def run(count: int) -> None:
        plan.link.ask("timed_run", f"{text}: timed", count=count)

    found = seconds(run, calls, SAMPLE_S[plan.device.type])
    outputs, _, _ = plan.link.ask_outputs("timed_outputs", text)
    same_bits(outputs, plan.expected(args), text, "other bits while it was timed")
    return found


def seconds_here(plan: Plan, function: Callable[..., object], args: Args) -> list[float]:
    """Samples of the seconds of one call of an alternative, in this process, by the same clock."""
    timed = Timed(function, args, plan.device)
    return seconds(timed, timed.calls, SAMPLE_S[plan.device.type])


def seconds(run: Callable[[int], object], calls: int, sample_s: float) -> list[float]:
    """Seconds of a call in each of the samples of at least `sample_s`. `run(n)` makes n runs of `calls` calls."""
    run(1)
    start = time.perf_counter()
    run(1)
    count = max(1, math.ceil(sample_s / (time.perf_counter() - start)))
    samples: list[float] = []
    for _ in range(SAMPLES):
        start = time.perf_counter()
        run(count)
        samples.append((time.perf_counter() - start) / (count * calls))
    return samples
