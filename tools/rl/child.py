"""The process of one part of an RL run: an engine and a trainer together, or the supervised start alone.

    python -m samebits.tools.rl.child FOLDER    # carries out FOLDER/plan.json, writes FOLDER/ended.json last

Its environment is set before the interpreter starts. It belongs to the worker's process group.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from samebits.kernels.adapters.errors import PatchError
from samebits.tools.job.job import Job
from samebits.tools.rl.links import link_or_copy
from samebits.tools.schema.artifacts.rl import Broken, Done, Ended, Refused
from samebits.tools.schema.base import Model
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Experiment

if TYPE_CHECKING:
    from samebits.tools.rl.loop import Loop
    from samebits.tools.rl.policy import Policy
    from samebits.tools.rl.task import Sort
    from samebits.tools.schema.artifacts.rl import StepLine
    from samebits.tools.sides.vllm.live import LiveEngine

PLAN, ENDED, SIDES, LOOP = "plan.json", "ended.json", "sides.json", "loop.json"


class Plan(Model):
    """What a child does."""

    part: Literal["start", "loop", "corrections"]
    experiment: Experiment
    device: Literal["cpu", "cuda"]
    folder: str
    """Its own."""
    events: str
    """Where progress is written."""
    model: str = ""
    """Folder of the model that the loop starts from."""
    arm: Literal["stock", "exact"] = "stock"
    kernels: str = "auto"
    lags: tuple[int, ...] = (0,)
    earlier: str = ""
    """Folder of the same child of an earlier run, to go on from."""
    ends: float = 0.0
    """Of time.time: when a loop stops with a checkpoint; 0: never."""


def run(plan: Plan) -> None:
    """Carry it out."""
    job = Job(Path(plan.folder), events=Path(plan.events))
    if plan.part == "start":
        from samebits.tools.rl.start import make

        make(plan.experiment, Path(plan.folder) / "model", plan.device, job, limited=bool(plan.ends))
    elif plan.part == "corrections":
        from samebits.tools.rl.compare import compare

        compare(plan, job)
    else:
        loops(plan, job)


def sides(plan: Plan, more: dict[str, Any] | None = None) -> tuple[LiveEngine, Policy, Sort]:
    """The engine and the trainer of an arm, and the task.

    Args:
        more: further arguments of vllm.LLM.
    """
    options = engine_arguments(plan.experiment, plan.device, plan.arm, plan.kernels, more or {})
    # Only now: the options set what vLLM reads when it is imported.
    from samebits.tools.rl.checkpoint import check_disk
    from samebits.tools.rl.policy import Policy
    from samebits.tools.rl.start import task_of
    from samebits.tools.sides.vllm.live import LiveEngine

    policy = Policy.load(Path(plan.model), plan.experiment.trainer, plan.device, plan.experiment.rl)
    if plan.part == "loop":
        check_disk(Path(plan.folder), policy.count(), plan.experiment.rl, bool(plan.ends))
    task = task_of(plan.experiment.rl, policy.side.module.config)
    if plan.arm == "exact":
        policy.patch(plan.kernels)
    engine = LiveEngine.start(Path(plan.model), plan.device, options)
    lines = [*engine.lines, *(policy.patched.lines if policy.patched else policy.side.describe()[1])]
    (Path(plan.folder) / SIDES).write_text(json.dumps(lines), encoding="utf-8")
    return engine, policy, task


def engine_arguments(
    experiment: Experiment, device: str, arm: str, kernels: str, more: dict[str, Any]
) -> dict[str, Any]:
    """Arguments of vllm.LLM: stock: what [rollout] says. Exact: the same through `engine_options`."""
    rollout = experiment.rollout
    own: dict[str, Any] = {"dtype": rollout.dtype, "max_model_len": rollout.max_model_len, "disable_log_stats": True}
    if arm == "exact":
        from samebits.kernels.api import engine_options

        return engine_options(device=device, kernels=kernels, **(own | dict(rollout.engine) | more))
    from samebits.kernels.adapters.setup import cpu_isa

    cpu_isa.apply()
    stock = {
        "enforce_eager": rollout.eager,
        "logprobs_mode": "processed_logprobs",
        "skip_tokenizer_init": True,
        "seed": 0,
    }
    return own | stock | dict(rollout.engine) | more


def loops(plan: Plan, job: Job) -> None:
    """One loop per lag, all with one engine; each from the start model."""
    from samebits.tools.rl.checkpoint import BYTES, WRITTEN_PER_S, Store
    from samebits.tools.rl.loop import Loop, run

    job.emit(plan.arm, "loading the engine and the trainer")
    engine, policy, task = sides(plan)
    # A large model's state is copied only where it is needed again.
    begin = _copy(policy.state()) if len(plan.lags) > 1 else None
    for number, lag in enumerate(plan.lags):
        folder = Path(plan.folder) / f"lag-{lag}"
        if plan.earlier and finished(Path(plan.earlier) / folder.name):
            shutil.copytree(Path(plan.earlier) / folder.name, folder, copy_function=link_or_copy)
            continue
        folder.mkdir(exist_ok=True)
        if engine.version and begin is not None:
            policy.restore(_copy(begin))
            policy.push(engine.llm)
            engine.version = 0
        loop = Loop.of(plan.arm, plan.experiment, engine, policy, task, lag, folder)
        store = Store(folder)
        if plan.earlier:
            store.take_over(Path(plan.earlier) / f"lag-{lag}")
        resumed = store.restore(loop)
        steps = plan.experiment.rl.steps
        ends = math.inf
        if plan.ends:
            ends = time.time() + (plan.ends - time.time()) / (len(plan.lags) - number)
            ends -= policy.count() * BYTES / WRITTEN_PER_S
        said = run(loop, store, steps, _teller(job, plan, loop, folder), ends)
        facts = {"not_exact": said, "resumed_at": resumed, "unfinished": not said and loop.step < steps}
        (folder / LOOP).write_text(json.dumps(facts), encoding="utf-8")


def finished(folder: Path) -> bool:
    """Whether the loop of this folder came to its end, be it at its last step or at a difference."""
    path = folder / LOOP
    return path.is_file() and not json.loads(path.read_text(encoding="utf-8")).get("unfinished", False)


def _copy(state: dict[str, Any]) -> dict[str, Any]:
    """A state that later updates do not reach."""
    import copy

    return copy.deepcopy(state)


def _teller(job: Job, plan: Plan, loop: Loop, folder: Path) -> Any:
    writer = None
    if plan.experiment.rl.tensorboard:
        from samebits.tools.rl.board import writer_for

        writer = writer_for(folder)
    named = f"{plan.arm}, lag {loop.lag}" if loop.lag else plan.arm

    def tell(line: StepLine) -> None:
        text = (
            f"reward {line.reward:.3f}, k3 {line.gap.k3:.2e}, {line.gap.nonzero}/{line.gap.tokens} differ, "
            f"gradient {line.gradient_norm:.3g}"
        )
        job.emit(named, text, line.step + 1, plan.experiment.rl.steps)
        if writer is not None:
            writer(line)

    return tell


def main() -> None:
    """Entry point."""
    folder = Path(sys.argv[1])
    plan = Plan.model_validate_json((folder / PLAN).read_text(encoding="utf-8"))
    how: Done | Refused | Broken
    try:
        run(plan)
        how = Done()
    except (UserError, PatchError) as error:
        how = Refused(thing=error.thing, reason=error.reason, next_step=error.next_step)
    except Exception as error:  # the worker must hear of it, whatever it is
        traceback.print_exc()
        how = Broken(message=f"{type(error).__name__}: {error}")
    part = folder / (ENDED + ".part")
    part.write_text(Ended(how=how).model_dump_json(), encoding="utf-8")
    os.replace(part, folder / ENDED)
    sys.stdout.flush()
    sys.stderr.flush()
    # Engines hold threads and exit handlers that take up to 20 s to wind down; everything is written.
    os._exit(0)


if __name__ == "__main__":
    main()
