"""Throughput of the experiment's engine against the same engine without samebits, in the same job."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from samebits.kernels.adapters.setup import settings
from samebits.tools.job.job import device_of
from samebits.tools.schema.artifacts.regression import NoThroughput, Rate, Throughput
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.passes import Generate

if TYPE_CHECKING:
    from collections.abc import Callable

    from samebits.tools.gate.regression.bench import Bench
    from samebits.tools.schema.experiment import Experiment, Rollout
    from samebits.tools.sides.session import Session

RUNS = 5
"""Timed runs of each engine, after one that is not."""
BAR = 0.7
ON_CPU = (
    "on CPU only where it is asked for (the steady CPU engine runs eager and is far slower than the stock one): set "
    "[gate] min_throughput, or name throughput in axes or require"
)


@dataclass(slots=True, frozen=True)
class Wanted:
    """What is asked of throughput."""

    bar: float | None
    """Smallest ratio that passes; None: nothing is asked."""
    required: bool


def wanted(experiment: Experiment, named: bool, required: bool) -> Wanted:
    """The bar of this experiment.

    Args:
        named: somebody asked for throughput by its name.
    """
    bar = experiment.gate.min_throughput
    if bar is None and (named or device_of(experiment) == "cuda"):
        bar = BAR
    return Wanted(bar, required)


def stock(config: Rollout, device: str) -> Rollout:
    """The engine as vLLM starts it: compiled, with graphs on a GPU, nothing of samebits in it or in its environment."""
    known = {pair: found for pair in settings.SETTINGS if pair[0] == device and (found := _loaded(*pair)) is not None}
    names = {name for found in known.values() for name in (*found.variables, *found.usual)}
    taken = {name for found in known.values() for name in found.arguments}
    return config.model_copy(
        update={
            "kernels": "none",
            "eager": False,
            "env": {name: value for name, value in config.env.items() if name not in names},
            "engine": {name: value for name, value in config.engine.items() if name not in taken},
        }
    )


def _loaded(device: str, kernels: str) -> settings.Settings | None:
    from samebits.kernels.adapters.errors import PatchError

    try:
        return settings.find(device, kernels)[2]
    except PatchError:
        return None


def own(bench: Bench, asked: Wanted) -> Rate | NoThroughput:
    """The engine of the experiment, while it is open anyway."""
    experiment = bench.sides.experiment
    config, reason = experiment.rollout, ""
    if asked.bar == 0:
        reason = "[gate] min_throughput is 0"
    elif config.side != "vllm" or not bench.source.engine:
        reason = f"side {config.side!r} is no engine"
    elif stock(config, device_of(experiment)) == config:
        reason = "the engine of the experiment is the stock one"
    elif asked.bar is None:
        reason = ON_CPU
    if reason:
        return NoThroughput(reason=reason, required=asked.required)
    bench.sides.job.emit("gate", "throughput of the experiment's engine")
    return _rates(bench, bench.sides.session("rollout"), "of the experiment")


def throughput(
    bench: Bench, mine: Rate, asked: Wanted, also: Callable[[Session], None] | None = None
) -> Throughput | NoThroughput:
    """The same workload on an engine without samebits, after every axis of the first one.

    Args:
        also: asks that engine something else while it is open.
    """
    begun, sides = time.monotonic(), bench.sides
    sides.close("rollout")
    sides.job.emit("gate", "throughput of the engine without samebits")
    other = stock(sides.experiment.rollout, device_of(sides.experiment))
    try:
        with sides.job.open_side("rollout", sides.experiment.model_copy(update={"rollout": other})) as session:
            theirs = _rates(bench, session, "without samebits")
            if also is not None:
                also(session)
    except UserError as error:
        return NoThroughput(reason=f"{error.thing}: {error.reason}", required=asked.required)
    assert asked.bar is not None
    return Throughput(own=mine, stock=theirs, bar=asked.bar, required=asked.required, seconds=time.monotonic() - begun)


def _rates(bench: Bench, session: Session, what: str) -> Rate:
    runs = []
    for _ in range(1 + RUNS):
        folder = bench.sides.job.new("timed")
        facts = session.ask(Generate(workload=bench.sides.experiment.workload, folder=str(folder))).facts
        tokens, seconds = facts["tokens"], facts["seconds"]
        assert isinstance(tokens, int | float)
        assert isinstance(seconds, int | float)
        runs.append(tokens / seconds)
    return Rate(what=what, runs=tuple(runs[1:]))
