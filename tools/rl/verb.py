"""`samebits rl`: the supervised start, then one child process per arm, one after the other; then the report."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from samebits.tools.job.job import device_of
from samebits.tools.job.log import Log
from samebits.tools.report import rl as pages
from samebits.tools.rl.child import ENDED, LOOP, PLAN, SIDES, Plan, finished
from samebits.tools.rl.links import link_or_copy
from samebits.tools.schema.artifacts.rl import Broken, Done, Ended, Refused, RlReport, Run, StepLine
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.results import Result
from samebits.tools.schema.resumed import different, earlier_rl
from samebits.tools.sides.environment import variables
from samebits.tools.sides.session import SideDied
from samebits.tools.store import artifact
from samebits.tools.store.fingerprint import environment

if TYPE_CHECKING:
    from samebits.tools.job.job import Job
    from samebits.tools.schema.experiment import Experiment
    from samebits.tools.schema.requests import RlRequest

Arm = Literal["stock", "exact"]
SIZES = {"tiny": 3e6, "0.6b": 6e8, "1.7b": 1.7e9}
"""Parameters of the random models, roughly."""
GRADIENT_BYTES = 88
"""--corrections, per parameter: two float32 sums for each of up to ten rows, and the two true gradients."""
MOST_GRADIENT_BYTES = 16 << 30
REPORT_S = 15.0
"""Kept back of the given time, for processes that end and for the report."""


@dataclass(slots=True)
class Work:
    """One request on its way."""

    request: RlRequest
    experiment: Experiment
    """What the children are given."""
    job: Job
    device: Literal["cpu", "cuda"]
    kernels: str
    earlier: Path | None
    ends: float = 0.0
    """Of time.time: when all must have ended; 0: never."""

    def share(self, loops: int) -> float:
        """When the next of so many arms must end (of time.time); 0: never."""
        return self.ends and time.time() + (self.ends - time.time()) / loops

    def child(self, part: Literal["start", "loop", "corrections"], name: str, **more: Any) -> Path:
        """Run one child process to its end; its folder.

        Raises:
            UserError: what it refused.
            SideDied: it ended without a word, or broke.
        """
        folder = self.job.folder / name
        folder.mkdir()
        experiment = self.experiment
        plan = Plan.model_validate(
            {
                "part": part,
                "experiment": experiment,
                "device": self.device,
                "folder": str(folder),
                "events": str(self.job.events or self.job.folder / "events.jsonl"),
                "kernels": self.kernels,
                **more,
            }
        )
        (folder / PLAN).write_text(plan.model_dump_json(indent=1), encoding="utf-8")
        log = Log(folder / "log.txt", keep_head=True)
        own = experiment.trainer.env | experiment.rollout.env
        try:
            code = subprocess.run(
                [sys.executable, "-m", "samebits.tools.rl.child", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log.write_end,
                stderr=log.write_end,
                env=variables(experiment.rollout, self.device) | own,
                check=False,
            ).returncode
        finally:
            log.close()
        return _checked(folder, name, code, log.path)


def _checked(folder: Path, name: str, code: int, log: Path) -> Path:
    ended = folder / ENDED
    if not ended.is_file():
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise SideDied(name, f"{how}; go on from its last checkpoint with --resume", log)
    how_ = Ended.model_validate_json(ended.read_text(encoding="utf-8")).how
    if isinstance(how_, Refused):
        raise UserError(how_.thing, how_.reason, f"{how_.next_step}; log: {log}")
    if isinstance(how_, Broken):
        raise SideDied(name, f"failed: {how_.message}", log)
    return folder


def run_rl(request: RlRequest, job: Job) -> Result:
    """Carry out the request; verdict equal: the exact arm was exact at every step."""
    begun = time.monotonic()
    settings = request.experiment.rl
    device = device_of(request.experiment)
    kernels = {"cpu": "vllm", "cuda": "samebits"}[device] if settings.kernels == "auto" else settings.kernels
    _check(request)
    ends = time.time() + request.seconds - REPORT_S if request.seconds else 0.0
    work = Work(request, _given(request), job, device, kernels, _earlier(request), ends)
    start = _start(work)
    if request.what == "corrections":
        from samebits.tools.rl.answer import corrections_answer

        return corrections_answer(work, start, begun)
    runs: list[Run] = []
    sides: dict[str, tuple[str, ...]] = {}
    for number, arm in enumerate(settings.arms):
        lags = settings.lags if request.what == "stale" else (settings.lag,)
        folder = _arm(work, arm, lags, start, work.share(len(settings.arms) - number))
        runs += [read_run(folder / f"lag-{lag}", arm, lag) for lag in lags]
        sides[arm] = tuple(json.loads((folder / SIDES).read_text(encoding="utf-8")))
    return _answer(work, runs, sides, begun)


def _given(request: RlRequest) -> Experiment:
    """Stale batches need importance weights: unclipped ones where none are named."""
    experiment = request.experiment
    if request.what != "stale" or experiment.rl.correction != "none":
        return experiment
    return experiment.model_copy(update={"rl": experiment.rl.model_copy(update={"correction": "is"})})


def _check(request: RlRequest) -> None:
    """What would only be seen after minutes."""
    experiment = request.experiment
    settings = experiment.rl
    if experiment.rollout.side != "vllm" or experiment.trainer.side != "transformers":
        raise UserError(
            f"sides {experiment.rollout.side!r} and {experiment.trainer.side!r}",
            "the loop runs vLLM against transformers",
            'set [rollout] side = "vllm" and [trainer] side = "transformers"',
        )
    if experiment.workload.temperature == 0 or experiment.workload.top_k or experiment.workload.top_p < 1:
        raise UserError(
            "[workload] temperature, top_p, top_k",
            "the loop samples from the whole distribution: its gradient is that of no other",
            "set a temperature above 0, top_p = 1 and top_k = 0",
        )
    if not settings.arms or len(set(settings.arms)) < len(settings.arms):
        raise UserError(f"[rl] arms = {list(settings.arms)}", "each arm at most once, at least one", "correct it")
    if request.what == "stale" and (not settings.lags or min(settings.lags) < 0):
        raise UserError(f"[rl] lags = {list(settings.lags)}", "counts from 0, at least one", "correct it")
    if request.what == "corrections":
        check_size(experiment)
    if settings.correction == "centering" and (request.what == "stale" or settings.lag):
        raise UserError(
            '[rl] correction = "centering"', "its method takes one update per batch, without lag", 'use "is", lag = 0'
        )


def check_size(experiment: Experiment) -> None:
    """Corrections are compared by whole gradients on the CPU.

    Raises:
        UserError: too many parameters for that.
    """
    rl, model = experiment.rl, experiment.rollout.model
    # Of a given model the weights' bytes; 2 to 4 of them per parameter.
    size = sum(path.stat().st_size for path in Path(model).glob("*.safetensors")) / 2 if model else SIZES[rl.shape]
    need = size * GRADIENT_BYTES
    if need > MOST_GRADIENT_BYTES:
        raise UserError(
            f"rl --corrections with {size / 1e9:.2g}e9 parameters",
            f"would hold {need / 2**30:.0f} GiB of gradients on the CPU ({GRADIENT_BYTES} bytes per parameter); "
            f"the most is {MOST_GRADIENT_BYTES >> 30}",
            'use a smaller model (shape = "tiny", or [rollout] model)',
        )


def _earlier(request: RlRequest) -> Path | None:
    """The job folder to go on from.

    Raises:
        UserError: not a job of `samebits rl`, of another experiment, or without a start model.
    """
    if not request.resume:
        return None
    folder = Path(request.resume)
    before = earlier_rl(folder)
    if before.what != request.what or different(before.experiment, request.experiment):
        raise UserError(str(folder), "a run of another experiment", "resume with the same settings, or start anew")
    if request.what == "corrections":
        raise UserError("rl --corrections", "has no checkpoints", "run it again")
    return folder


def _start(work: Work) -> Path:
    """The model that every arm begins with: the given one where nothing is supervised, that of the earlier run where
    there is one.
    """
    experiment = work.request.experiment
    if experiment.rollout.model and not experiment.rl.warmup_steps:
        return Path(experiment.rollout.model)
    if work.earlier is not None and (work.earlier / "start" / ENDED).is_file():
        folder = work.job.folder / "start"
        shutil.copytree(work.earlier / "start", folder, copy_function=link_or_copy)
        return folder / "model"
    return work.child("start", "start", ends=work.ends) / "model"


def _arm(work: Work, arm: Arm, lags: tuple[int, ...], start: Path, ends: float = 0.0) -> Path:
    """Run an arm; taken over where it ended in the earlier run, gone on with where it did not; its folder."""
    earlier = None if work.earlier is None else work.earlier / arm
    asked = {"arm": arm, "model": str(start), "lags": lags, "ends": ends}
    if earlier is None or not earlier.is_dir():
        return work.child("loop", arm, **asked)
    if all(finished(earlier / f"lag-{lag}") for lag in lags) and _done(earlier):
        return Path(shutil.copytree(earlier, work.job.folder / arm, copy_function=link_or_copy))
    return work.child("loop", arm, **asked, earlier=str(earlier))


def _done(folder: Path) -> bool:
    path = folder / ENDED
    return path.is_file() and isinstance(Ended.model_validate_json(path.read_text(encoding="utf-8")).how, Done)


def read_run(folder: Path, arm: Arm, lag: int) -> Run:
    """What a loop left behind."""
    from samebits.tools.rl.checkpoint import METRICS

    said = json.loads((folder / LOOP).read_text(encoding="utf-8"))
    path = folder / METRICS
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    lines = tuple(StepLine.model_validate_json(line) for line in text.splitlines())
    return Run.model_validate({"arm": arm, "lag": lag, "steps": lines, **said})


def setting_in_words(experiment: Experiment) -> str:
    """The loop in one line."""
    rl = experiment.rl
    return (
        f"sort {rl.digits[0]} to {rl.digits[1]} digits; {rl.warmup_steps} supervised updates, then {rl.steps} steps of "
        f"{rl.prompts} prompts x {rl.group} answers; AdamW {rl.rate:g}, clip {rl.clip:g}, temperature "
        f"{experiment.workload.temperature:g}, correction {rl.correction}, {experiment.rollout.dtype}"
    )


def model_in_words(experiment: Experiment) -> str:
    """The model of an experiment."""
    rl = experiment.rl
    return experiment.rollout.model or f"random {rl.family} of shape {rl.shape}"


def _answer(work: Work, runs: list[Run], sides: dict[str, tuple[str, ...]], begun: float) -> Result:
    experiment = work.experiment
    report = RlReport(
        what=work.request.what,
        model=model_in_words(experiment),
        setting=setting_in_words(experiment),
        runs=tuple(runs),
        sides=sides,
        seconds=time.monotonic() - begun,
        environment=environment(),
    )
    metrics = {
        f"metrics-{run.arm}-{run.lag}.jsonl": "".join(line.model_dump_json() + "\n" for line in run.steps)
        for run in runs
    }
    texts = {"report.html": pages.page(report), **pages.plots(report), **metrics}
    artifact.write(work.job.folder / "rl", report, texts=texts)
    rows = tuple(pages.row(run) for run in runs)
    verdict, words = _verdict(runs, experiment.rl.steps)
    if verdict == "unjudged":
        words += f"; go on with samebits rl --resume {shlex.quote(str(work.job.folder))}"
    page = os.path.join(work.job.folder, "rl", "report.html")
    return Result(
        verdict=verdict,
        summary=f"report: {page}",
        closing=f"verdict: {words}",
        ids={"rl": "rl"},
        rows=rows,
        total=len(rows),
    )


def _verdict(runs: list[Run], steps: int) -> tuple[Literal["equal", "differs", "done", "unjudged"], str]:
    exact = [run for run in runs if run.arm == "exact"]
    stopped = next((run for run in exact if run.not_exact), None)
    if stopped is not None:
        return "differs", f"the exact arm differs at step {len(stopped.steps)}: {stopped.not_exact}"
    if any(run.unfinished for run in runs):
        assert all(run.exact_steps == len(run.steps) for run in exact), "the guard let a difference through"
        far = ", ".join(f"{run.arm} {len(run.steps)} of {steps}" for run in runs)
        return "unjudged", f"time was over after these steps: {far}; the exact arm was exact at each of its own"
    if not exact:
        return "done", "no exact arm was asked for"
    assert all(len(run.steps) == run.exact_steps == steps for run in exact), "the guard let a difference through"
    tokens = sum(line.gap.tokens for run in exact for line in run.steps)
    return "equal", f"the exact arm is exact at each of {steps * len(exact)} steps ({tokens} tokens)"
