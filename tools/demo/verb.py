"""`samebits demo`: the story of the README, each number live, on a tiny random model against real vLLM.

Each step uses what a user uses: the same verbs on the same kind of experiment.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from samebits.kernels.adapters.setup.settings import DEFAULT
from samebits.tools.demo.exact import Proven, exact_and_update
from samebits.tools.diff.triggers import likely
from samebits.tools.diff.verb import run_diff
from samebits.tools.job.job import Job, device_of
from samebits.tools.measure.answer import said_of
from samebits.tools.measure.verb import run_measure
from samebits.tools.report import page
from samebits.tools.repro.verb import run_minimize
from samebits.tools.schema.artifacts.demo import DemoManifest, DemoStep
from samebits.tools.schema.artifacts.divergence import DivergenceManifest
from samebits.tools.schema.artifacts.gap import GapReport
from samebits.tools.schema.experiment import Experiment, Workload
from samebits.tools.schema.requests import DiffRequest, MeasureRequest, MinimizeRequest
from samebits.tools.schema.results import Result
from samebits.tools.sides.tiny_experiment import MANY, experiment_for
from samebits.tools.sides.transformers.tiny import write_tiny
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from collections.abc import Mapping

    from samebits.tools.schema.artifacts.gap import GapStats
    from samebits.tools.schema.requests import DemoRequest


LONG = Workload(prompts=10, prompt_tokens=(120, 220), new_tokens=16)
"""For the engine against itself: only long contexts have keys to split."""
FEW = Workload(prompts=6, prompt_tokens=(3, 200), new_tokens=12)
"""For the steps that look at activations one operator at a time."""
ENGINE_THREADS = {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
"""Waiting threads sleep: on a busy machine spinning ones take all the time there is."""
CLOSED = {
    "vllm": "vLLM's own operators in the trainer",
    "samebits": "samebits' operators in the engine and the trainer",
}
"""Table of the patch engine -> title of step 5."""


@dataclass(slots=True)
class Story:
    """What the steps add to."""

    job: Job
    steps: list[DemoStep] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)

    def part(self, name: str) -> Job:
        """A job of its own for one verb, below the demo's folder, with the demo's progress lines."""
        folder = self.job.folder / name
        folder.mkdir()
        events = self.job.events or self.job.folder / "events.jsonl"
        return Job(folder, events=events, prepared=self.job.prepared, kept=self.job.kept)

    def tell(self, title: str, text: str, *, held: bool, stats: GapStats | None = None, spare: float = 0.0) -> None:
        """End a step; `spare` seconds of what has passed belong to the next one."""
        number = len(self.steps) + 1
        seconds = time.monotonic() - self.begun - spare
        self.steps.append(DemoStep(number=number, title=title, text=text, held=held, stats=stats, seconds=seconds))
        self.begun = time.monotonic() - spare
        self.job.emit("demo", f"{number}. {title}: {text}", number, 7)


def run_demo(request: DemoRequest, job: Job) -> Result:
    """Carry out the seven steps; the verdict is exact only if every step saw what it must."""
    device = device_of(Experiment(device=request.device))
    model = job.folder / "model"
    stock = _experiment(model, device, {})
    if device == "cpu":
        torch.set_num_threads(1)  # for this process: the side at work beside it has the other core
    story = Story(job)
    job.prepare("rollout", stock)
    write_tiny(model, request.family)
    # What step 2 will most likely switch, first and in the end: the processes load their libraries meanwhile, and the
    # last engine goes on to step 3.
    off = {trigger.variable: trigger.off for trigger in (likely(device) if device == "cpu" else [])}
    first, last = (_experiment(model, device, dict(part)) for part in ([*off.items()][:1], off.items()))
    job.keep("rollout", stock)
    if off:
        job.prepare("rollout", first)
    before = _gap(story, stock)
    if off:
        job.keep("rollout", last)
        job.prepare("rollout", last)
        job.prepare("trainer", last)
    switches = _against_itself(story, _experiment(model, device, {}, workload=LONG))
    job.release("rollout", stock)
    table = DEFAULT[device]
    # samebits' own operators need no switch of the engine's.
    closed = _experiment(model, device, switches if table == "vllm" else {}, kernels=table)
    job.keep("rollout", closed)
    job.prepare("rollout", closed)
    job.prepare("trainer", closed)
    work = _work_list(story, _experiment(model, device, switches, workload=FEW), switched=bool(switches))
    _repro(story, work[1])
    proven = exact_and_update(story.part("exact"), closed)
    story.tell(
        CLOSED[table],
        f"{len(proven.replaced)} modules replaced, backward in plain PyTorch",
        held=proven.exact.exact,
        stats=proven.exact,
        spare=proven.update_seconds + proven.planted_seconds,
    )
    story.tell(
        "An update, the weights pushed into the live engine",
        f"step on random advantages, {proven.pushed}",
        held=proven.updated.exact,
        stats=proven.updated,
        spare=proven.planted_seconds,
    )
    planted = proven.planted
    story.tell("One ulp planted in one layer", planted.text, held=planted.found, stats=planted.stats)
    return _finish(story, work[0], proven, before, request.family)


def _experiment(
    model: Path, device: str, switches: Mapping[str, str], kernels: str = "none", workload: Workload = MANY
) -> Experiment:
    """On CPU the engine has two threads: the keys are split over them, with one there is nothing to see in step 2."""
    made = experiment_for(model, device, switches, kernels, workload)
    if device != "cpu":
        return made
    engine = made.rollout.model_copy(update={"env": made.rollout.env | ENGINE_THREADS})
    trainer = made.trainer.model_copy(update={"env": made.trainer.env | {"OMP_NUM_THREADS": "1"}})
    return made.model_copy(update={"rollout": engine, "trainer": trainer})


def _gap(story: Story, experiment: Experiment) -> list[float]:
    part = story.part("measure")
    run_measure(MeasureRequest(experiment=experiment, axes=()), part)
    gap = artifact.read(part.folder / "gap", GapReport)
    stored = artifact.load_tensors(part.folder / "gap", "gap.safetensors")
    differences_N = (stored["rollout"].double() - stored["trainer"].double()).abs()
    cause = said_of(gap.not_numerics[0]) if gap.not_numerics else "no cause of data or meaning fits"
    story.tell(
        "Stock vLLM against stock transformers",
        f"same weights ({gap.weights_text}), same tokens; {cause}",
        held=not gap.stats.exact,  # without a gap there is no story
        stats=gap.stats,
    )
    return differences_N.tolist()


def _against_itself(story: Story, experiment: Experiment) -> dict[str, str]:
    part = story.part("itself")
    run_diff(DiffRequest(experiment=experiment, against="batch"), part)
    found = artifact.read(part.folder / "divergence", DivergenceManifest)
    switches = {name: value for item in found.work for name, value in item.cause.switch.items()}
    if not found.work:
        title = "The rollout side against itself, each sequence alone"
        story.tell(title, "equal here: nothing to switch off", held=found.gap.exact, stats=found.gap)
        return switches
    named = "; then ".join(f"{item.kind} {item.between}: {item.cause.why}" for item in found.work)
    title = "The rollout side is not equal to itself at a batch of one"
    if not switches:
        named += "; no switch of the engine takes it away"
    story.tell(title, named, held=_explained(found, switches, experiment.device), stats=found.gap)
    return switches


def _explained(found: DivergenceManifest, switches: Mapping[str, str], device: str) -> bool:
    """Whether nothing is left unexplained; on CUDA, where the engine has no switch to show it by, no cause unknown."""
    if found.unexplained.exact:
        return True
    return device == "cuda" and not switches and all(item.cause.name != "unknown" for item in found.work)


def _work_list(story: Story, experiment: Experiment, *, switched: bool) -> tuple[DivergenceManifest, Path]:
    part = story.part("diff")
    run_diff(DiffRequest(experiment=experiment), part)
    found = artifact.read(part.folder / "divergence", DivergenceManifest)
    kinds = ", ".join(dict.fromkeys(item.kind for item in found.work))
    left = (
        "with all put right every logprob is equal"
        if found.unexplained.exact
        else f"{found.unexplained.nonzero} tokens stay unexplained"
    )
    story.tell(
        f"{'With that switched off: the' if switched else 'The'} operators that differ between the sides",
        f"{len(found.work)} on the list ({kinds}), each proven by putting it right; {left}",
        held=bool(found.work) and found.unexplained.exact,
        stats=found.gap,
    )
    return found, part.folder / "divergence"


def _repro(story: Story, divergence: Path) -> None:
    part = story.part("repro")
    result = run_minimize(MinimizeRequest(divergence=str(divergence), operator=0), part)
    # The verb has run repro.py in a fresh interpreter and refuses any exit code but 1.
    text = f"{result.summary} It exits 1."
    story.tell("The first one cut out and run by itself", text, held=result.verdict == "differs")


def _finish(story: Story, found: DivergenceManifest, proven: Proven, before: list[float], family: str) -> Result:
    failed = [step for step in story.steps if not step.held]
    tokens = proven.exact.tokens + proven.updated.tokens
    report = DemoManifest(
        model=f"tiny random {family} (4 layers, hidden 256, bf16)",
        steps=tuple(story.steps),
        work=found.work,
        layers=found.layers,
        before=tuple(before),
        after=tuple(proven.after.tolist()),
        sides=proven.lines,
        exact=not failed,
        tokens=tokens,
    )
    artifact.write(story.job.folder / "demo", report, texts={"report.html": page.demo(report)})
    rows = tuple(
        {
            "step": step.number,
            "what": step.title,
            "held": step.held,
            "differ": "" if step.stats is None else f"{step.stats.nonzero}/{step.stats.tokens}",
            "max": None if step.stats is None else step.stats.max,
            "k3": None if step.stats is None else step.stats.k3,
            "seconds": round(step.seconds, 1),
        }
        for step in story.steps
    )
    missed = ", ".join(f"{step.number} ({step.title})" for step in failed)
    summary = f"not exact: not as it must be in step {missed}" if failed else f"exact ({tokens} tokens)"
    return Result(
        verdict="differs" if failed else "equal",
        summary=f"report: {story.job.folder / 'demo' / 'report.html'}",
        closing=f"verdict: {summary}",
        ids={"demo": "demo"},
        rows=rows,
        total=len(rows),
    )
