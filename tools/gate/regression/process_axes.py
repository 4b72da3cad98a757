"""Axes and controls that need another engine: restart, logprob mode, eager against graph, ranks, and the control of
batch by its company.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.tools.gate.regression.bench import described, disturbed, last_of_prompt
from samebits.tools.gate.regression.judge import Tried
from samebits.tools.job.job import device_of
from samebits.tools.job.sides import score_with
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.passes import How, Push
from samebits.tools.sides import rollout_store
from samebits.tools.sides.protocol import RolloutData

if TYPE_CHECKING:
    from pathlib import Path

    from samebits.tools.gate.regression.bench import Bench
    from samebits.tools.sides.protocol import Scores
    from samebits.tools.sides.session import Session

SWITCH = {"VLLM_CPU_ATTN_SPLIT_KV": "1", "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
"""Two threads, that there is something to split; they must not spin while others work."""
SWITCHED = "the KV split of the CPU attention switched on, two threads"
STOCK = "vLLM's own operators in the engine"
HOT = 0.7


def switchable(bench: Bench) -> bool:
    """Whether a switch is known that makes this rollout side's rows depend on their company: one of vLLM's own
    attention on CPU, which samebits' operators take the place of."""
    config = bench.sides.experiment.rollout
    return config.side == "vllm" and config.kernels == "none" and device_of(bench.sides.experiment) == "cpu"


def restart(bench: Bench, tried: Tried) -> None:
    """A new process with the same settings. Where no switch is known, its control is an element moved in it."""
    plain = bench.plain["rollout"]
    if not switchable(bench):
        bench.tap("rollout")
    bench.sides.close("rollout")
    job = bench.sides.job
    with job.open_side("rollout", bench.sides.experiment) as session:
        again, _ = score_with(session, job, "rollout", bench.source.folder, How())
        bench.compare(tried, "this process against a new one", plain, again)
        if switchable(bench):
            tried.no_control = "its control is another engine's"
        else:
            disturb_other(bench, tried, session, "in the new process alone", plain)


def disturb_other(bench: Bench, tried: Tried, session: Session, words: str, plain: Scores) -> None:
    """The control of a comparison with another engine, which is not used again: elements moved in it, or one matrix."""
    tap = bench.tap("rollout")
    flips = () if isinstance(tap, str) else bench.flips(tap, last_of_prompt)
    if not flips:
        try:
            nudged = bench.nudged()
        except UserError as error:
            tried.no_control = f"{tap}; and {error.thing}: {error.reason}"
            return
        session.ask(Push(weights=str(nudged.file), version=bench.data.weight_version))
        words = f"{words}, {nudged.words}"
    else:
        words = f"{words}, {described(flips)}"
    moved, _ = score_with(session, bench.sides.job, "rollout", bench.source.folder, How(), edits=flips)
    tried.control = disturbed(bench, words, plain, moved)


def eager_graph(bench: Bench, tried: Tried) -> None:
    """The engine as configured (CUDA graphs) against an eager one."""
    if device_of(bench.sides.experiment) != "cuda" or bench.sides.experiment.rollout.side != "vllm":
        tried.skipped.append("CUDA graphs are of vLLM on a GPU")
        return
    if bench.sides.experiment.rollout.eager:
        tried.skipped.append("the engine is eager: nothing of it runs as a graph")
        return
    _another_engine(bench, tried, {"eager": True}, "CUDA graphs against eager")


def ranks(bench: Bench, tried: Tried) -> None:
    """The engine as configured (several ranks) against one of a single rank."""
    engine = bench.sides.experiment.rollout.engine
    count = engine.get("tensor_parallel_size", 1)
    if count == 1:
        tried.skipped.append("one rank: tensor_parallel_size is 1")
        return
    alone = {name: value for name, value in engine.items() if name != "tensor_parallel_size"}
    _another_engine(bench, tried, {"engine": alone}, f"{count} ranks against one")


def _another_engine(bench: Bench, tried: Tried, update: dict[str, object], words: str) -> None:
    plain, sides = bench.plain["rollout"], bench.sides
    bench.tap("rollout")
    sides.close("rollout")
    other = sides.experiment.model_copy(update={"rollout": sides.experiment.rollout.model_copy(update=update)})
    with sides.job.open_side("rollout", other) as session:
        scores, _ = score_with(session, sides.job, "rollout", bench.source.folder, How())
        bench.compare(tried, words, plain, scores)
        disturb_other(bench, tried, session, "in the other engine alone", plain)


def switched_controls(bench: Bench, batch: Tried | None, restarted: Tried | None) -> None:
    """One engine in which company matters: the control of batch (within it) and of restart (against the first one)."""
    bench.sides.close("rollout")
    job = bench.sides.job
    try:
        with job.open_side("rollout", bench.sides.experiment, env=SWITCH) as session:
            together, _ = score_with(session, job, "rollout", bench.source.folder, How())
            alone, _ = score_with(session, job, "rollout", bench.source.folder, How(concurrency=1))
    except UserError as error:
        for tried in (batch, restarted):
            if tried is not None:
                tried.no_control = f"{SWITCHED}: {error.thing}: {error.reason}"
        return
    if batch is not None:
        batch.control = disturbed(bench, f"{SWITCHED}: all in flight against each alone", together, alone)
    if restarted is not None:
        words = f"a new process with {SWITCHED}, each alone"
        restarted.control = disturbed(bench, words, bench.plain["rollout"], alone)


def stock_controls(bench: Bench, session: Session, batch: Tried | None, restarted: Tried | None) -> None:
    """The controls of batch and restart by an engine on vLLM's own operators, where those give a row other bits in
    other company: then they vary what the axis varies, and take the place of moved weights.
    """
    config = bench.sides.experiment.rollout
    ran = any(one is not None and one.compared for one in (batch, restarted))
    if not ran or config.kernels != "samebits" or device_of(bench.sides.experiment) != "cuda":
        return
    bench.sides.job.emit("gate", f"control: {STOCK}")
    together, alone = (
        score_with(session, bench.sides.job, "rollout", bench.source.folder, how)[0]
        for how in (How(), How(concurrency=1))
    )
    within = disturbed(bench, f"{STOCK}: all in flight against each alone", together, alone)
    if not within.failed:
        return
    if batch is not None and batch.compared:
        batch.control = within
    if restarted is not None and restarted.compared:
        restarted.control = disturbed(bench, f"a new process with {STOCK}, each alone", bench.plain["rollout"], alone)


def at_temperature(bench: Bench, temperature: float) -> Path:
    """The rollout as if it had been sampled at this temperature, with nothing cut."""
    data = bench.data
    other = RolloutData(
        data.sequences,
        data.logprob_N,
        data.valid_N,
        temperature,
        logprobs=data.logprobs,
        weight_version=data.weight_version,
    )
    folder = bench.sides.job.new("temperature")
    rollout_store.write(folder, other, side="made for the gate")
    return folder


def own_modes(bench: Bench) -> tuple[list[Path], list[Scores]]:
    """Rollouts at temperature 1 and another one, and their scores by the engine of the experiment; made once, so that
    they can be had before that engine is closed for another axis.
    """
    if bench.modes is None:
        folders = [at_temperature(bench, 1.0), at_temperature(bench, HOT)]
        bench.modes = folders, [bench.sides.score("rollout", folder)[0] for folder in folders]
    return bench.modes


def logprob_mode(bench: Bench, tried: Tried) -> None:
    """Raw against processed logprobs at temperature 1 with nothing cut: the two must be one.

    Control: the same at another temperature, where they must not be.
    """
    sides = bench.sides
    config = sides.experiment.rollout
    if config.side != "vllm":
        tried.skipped.append(f"side {config.side!r} has no logprob mode of an engine")
        return
    other = "raw" if config.logprobs == "processed" else "processed"
    experiment = sides.experiment.model_copy(update={"rollout": config.model_copy(update={"logprobs": other})})
    folders, own = own_modes(bench)
    sides.close("rollout")
    with sides.job.open_side("rollout", experiment) as session:
        theirs, _ = score_with(session, sides.job, "rollout", folders[0], How())
        bench.compare(tried, f"{config.logprobs} against {other} logprobs at temperature 1", own[0], theirs)
        hot, _ = score_with(session, sides.job, "rollout", folders[1], How())
    words = f"temperature {HOT} in both engines, {config.logprobs} against {other}"
    tried.control = disturbed(bench, words, own[1], hot)
