"""`samebits gate`: every axis compared by bits, each with a control that must fail. Writes a RegressionReport."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, cast, get_args

from samebits.kernels.adapters.setup import settings
from samebits.tools.gate.regression import (
    engine_axes,
    judge,
    lengths,
    pieces,
    preemption,
    process_axes,
    speed,
    subject,
    trainer_axes,
    weight_axes,
)
from samebits.tools.gate.regression.answer import result_of
from samebits.tools.gate.regression.bench import Bench
from samebits.tools.gate.regression.judge import Tried
from samebits.tools.gate.regression.write import Run, write
from samebits.tools.job.job import device_of
from samebits.tools.job.rollouts import Source, obtain
from samebits.tools.job.sides import Sides
from samebits.tools.schema.artifacts.regression import THROUGHPUT, AxisName, NoThroughput
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Experiment, Workload
from samebits.tools.sides import rollout_store
from samebits.tools.sides.session import OutOfTime, SideDied
from samebits.tools.sides.tiny_experiment import experiment_for
from samebits.tools.sides.transformers.tiny import write_tiny

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from samebits.tools.job.job import Job
    from samebits.tools.schema.artifacts.regression import Rate, Throughput
    from samebits.tools.schema.requests import GateRequest
    from samebits.tools.schema.results import Result
    from samebits.tools.sides.session import Session

    Axis = Callable[[Bench, Tried], None]

ENGINE: dict[AxisName, Axis] = {
    "repeat": engine_axes.repeat,
    "batch": engine_axes.batch,
    "order": engine_axes.order,
    "lengths": lengths.lengths,
    "graph_buckets": engine_axes.graph_buckets,
    "decode_prefill": engine_axes.decode_prefill,
    "chunked_prefill": engine_axes.chunked_prefill,
    "prefix_hit": weight_axes.prefix_hit,
    "reload": weight_axes.reload,
    "preemption": preemption.preemption,
    "logprob_mode": process_axes.logprob_mode,
    "eager_graph": process_axes.eager_graph,
    "ranks": process_axes.ranks,
    "restart": process_axes.restart,
}
TRAINER: dict[AxisName, Axis] = {
    "trainer_repeat": trainer_axes.trainer_repeat,
    "micro_batch": trainer_axes.micro_batch,
    "layout": trainer_axes.layout,
    "gradients": trainer_axes.gradients,
    "checkpointing": trainer_axes.checkpointing,
    "trainer_rollout": trainer_axes.trainer_rollout,
}
ANEW: tuple[AxisName, ...] = ("preemption", "logprob_mode", "eager_graph", "ranks", "restart")
"""Axes that may start another engine."""
UNTIMED = "the engine ran out of time or ended; its log is in the job folder"
FAST = Workload(prompts=16, prompt_tokens=(3, 200), new_tokens=16)


def names() -> tuple[AxisName, ...]:
    """Every axis there is, in the order in which they run."""
    return cast("tuple[AxisName, ...]", get_args(AxisName))


def run_regression(request: GateRequest, job: Job) -> Result:
    """Carry out a gate request.

    Raises:
        UserError: unknown axes, bad input, a rollout without valid tokens or beyond what a side takes, an earlier piece
            about something else.
        SideDied: in the plain way of a side, before any axis.
    """
    begun = time.monotonic()
    experiment = _experiment(request, job)
    asked = _known(request.axes or experiment.gate.axes, "axis") or (*names(), THROUGHPUT)
    required = _known((*experiment.gate.require, *request.require), "required axis")
    prints = subject.fingerprints(experiment)
    about = subject.subject(experiment, prints)
    before = pieces.earlier(request.resume, about, request.rollout) if request.resume else None
    done = frozenset() if before is None else before.done
    missing = [name for name in required if name not in asked and name not in done]
    if wrong := [name for name in missing if not request.axes or name in request.require]:
        raise UserError(f"required axis {wrong[0]!r}", "not among the axes to run", "add it to them, or leave both out")
    asked = tuple(name for name in asked if name not in done)
    with ExitStack() as ending:
        sides = ending.enter_context(Sides(job, experiment))
        ending.callback(job.drop_prepared)
        source = (
            obtain(request.rollout, sides.experiment, lambda: sides.session("rollout"), job)
            if before is None
            else _again(before)
        )
        if not bool(source.data.valid_N.any()):
            raise UserError("the rollout", "no valid token: nothing could be compared", "check its mask")
        source = pieces.kept(source, job)
        bench = Bench(sides, source)
        named = THROUGHPUT in (*experiment.gate.axes, *request.axes, *required)
        rate = speed.wanted(experiment, named, THROUGHPUT in required)
        mine = _limited_rate(bench, rate) if THROUGHPUT in asked else None
        tried = _engine(bench, [name for name in names() if name in asked and name in ENGINE])
        measured = _measured(bench, mine, rate, before, tried)
        tried |= _trainer(bench, [name for name in names() if name in asked and name in TRAINER])
        rows = [
            judge.row(name, tried[name], experiment.gate.min_tokens, name in required)
            for name in names()
            if name in tried
        ]
        rows += [pieces.absent(name) for name in names() if name in missing]
        whole = pieces.merged(rows, before, tuple(name for name in names() if name in required))
        whole.sort(key=lambda row: names().index(row.name))
        report, folder = write(Run(bench, tuple(whole), measured, prints, about, before, time.monotonic() - begun))
    return result_of(report, folder, source, job)


def _again(before: pieces.Earlier) -> Source:
    data = rollout_store.read(before.rollout)
    report = before.report
    return Source(before.rollout, data, f"that of {before.folder}", report.generated, report.engine)


def _experiment(request: GateRequest, job: Job) -> Experiment:
    """The experiment, or the fast one on a tiny model."""
    if not request.tiny:
        return request.experiment
    job.emit("model", f"writing a tiny random {request.tiny}")
    model = write_tiny(job.folder / "model", request.tiny)
    fast = experiment_for(model, "cpu", settings.STEADY | {"OMP_NUM_THREADS": "1"}, kernels="vllm")
    trainer = fast.trainer.model_copy(update={"micro_batch": 4})
    return fast.model_copy(update={"workload": FAST, "gate": request.experiment.gate, "trainer": trainer})


def _known(given: tuple[str, ...], what: str) -> tuple[str, ...]:
    known = (*names(), THROUGHPUT)
    wrong = sorted(set(given) - set(known))
    if wrong:
        raise UserError(f"{what} {wrong[0]!r}", "not known", f"use some of {', '.join(known)}")
    return tuple(name for name in known if name in given)


def _engine(bench: Bench, asked: list[AxisName]) -> dict[AxisName, Tried]:
    """Axes of the rollout side on one engine; then what needs other engines, with the first one closed."""
    if not bench.source.engine:
        reason = "the rollout is a file: there is no engine to ask"
        return {name: Tried(skipped=[reason]) for name in asked}
    if not asked:
        return {}
    bench.sides.job.emit("gate", "the plain way: all in flight, tokens forced")
    bench.plain["rollout"], _ = bench.sides.score("rollout", bench.source.folder)
    switchable = process_axes.switchable(bench)
    tried: dict[AxisName, Tried] = {}
    for i, name in enumerate(asked):
        _ahead(bench, asked[i:], switchable)
        if name == "preemption" and "logprob_mode" in asked:
            _scored_before_it_closes(bench)
        tried[name] = _timed(bench, name, ENGINE[name])
        if name == "batch" and not switchable and tried[name].compared:
            engine_axes.batch_by_flip(bench, tried[name])
    shared = [tried[name] for name in ("batch", "restart") if name in tried and tried[name].compared]
    if switchable and shared:
        begun = time.monotonic()
        bench.sides.job.emit("gate", f"control: {process_axes.SWITCHED}")
        _limited(bench, lambda: process_axes.switched_controls(bench, tried.get("batch"), tried.get("restart")), shared)
        for one in shared:
            one.seconds += (time.monotonic() - begun) / len(shared)
    return tried


def _ahead(bench: Bench, left: Sequence[AxisName], switchable: bool) -> None:
    """Let the processes that later axes need load their libraries while this one runs."""
    experiment, job = bench.sides.experiment, bench.sides.job
    if experiment.rollout.side == "vllm":
        if any(name in ANEW for name in left):
            job.prepare("rollout", experiment)
        if switchable and left[0] == "restart":
            job.prepare("rollout", experiment, env=process_axes.SWITCH)
    if len(left) == 1 and experiment.trainer.side == "transformers":
        job.prepare("trainer", experiment)


def _scored_before_it_closes(bench: Bench) -> None:
    """Preemption closes the engine on a GPU: what logprob_mode needs of it comes first. A failure is the axis' own."""
    if bench.sides.experiment.rollout.side == "vllm" and device_of(bench.sides.experiment) == "cuda":
        with suppress(UserError):
            _limited(bench, lambda: process_axes.own_modes(bench), [])


def _trainer(bench: Bench, asked: list[AxisName]) -> dict[AxisName, Tried]:
    if not asked:
        return {}
    bench.sides.job.emit("gate", "recomputing the logprobs on the trainer side")
    bench.plain["trainer"], _ = bench.sides.score("trainer", bench.source.folder)
    return {name: _timed(bench, name, TRAINER[name]) for name in asked}


def _timed(bench: Bench, name: AxisName, axis: Axis) -> Tried:
    """Run one axis. What it cannot do here is a reason, and the engine it may have left half way is closed."""
    begun = time.monotonic()
    bench.sides.job.emit("gate", name.replace("_", " "), names().index(name), len(names()))
    tried = Tried()

    def run() -> None:
        try:
            axis(bench, tried)
        except UserError as error:
            # What was seen to differ stays so; without a control nothing else is proved.
            tried.control, tried.no_control = None, f"{error.thing}: {error.reason}"
            tried.skipped.append(tried.no_control)
            bench.sides.close("trainer" if name in TRAINER else "rollout")

    _limited(bench, run, [tried])
    tried.seconds = time.monotonic() - begun
    return tried


def _limited(bench: Bench, work: Callable[[], object], whose: Sequence[Tried]) -> None:
    """Do it within the limit of an axis. Out of time, or a side that ended: no verdict on those axes, sides closed."""
    limit = bench.sides.experiment.gate.axis_limit_s
    bench.sides.job.deadline.at = time.monotonic() + limit
    try:
        work()
    except OutOfTime:
        for one in whose:
            one.out_of_time = float(limit)
        bench.sides.close()
    except SideDied as error:
        for one in whose:
            one.broke = str(error)
        bench.sides.close()
    finally:
        bench.sides.job.deadline.at = None


def _limited_rate(bench: Bench, asked: speed.Wanted) -> Rate | NoThroughput:
    found: list[Rate | NoThroughput] = [NoThroughput(reason=UNTIMED, required=asked.required)]
    _limited(bench, lambda: found.append(speed.own(bench, asked)), [])
    return found[-1]


def _measured(
    bench: Bench,
    mine: Rate | NoThroughput | None,
    asked: speed.Wanted,
    before: pieces.Earlier | None,
    tried: dict[AxisName, Tried],
) -> Throughput | NoThroughput | None:
    """Throughput, where it is asked for; that of an earlier piece where it is not. Its second engine gives controls."""
    if mine is None:
        return None if before is None else before.report.throughput
    if isinstance(mine, NoThroughput):
        return mine
    found: list[Throughput | NoThroughput] = [NoThroughput(reason=UNTIMED, required=asked.required)]

    def controls(session: Session) -> None:
        process_axes.stock_controls(bench, session, tried.get("batch"), tried.get("restart"))

    _limited(bench, lambda: found.append(speed.throughput(bench, mine, asked, controls)), [])
    return found[-1]
