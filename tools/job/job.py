"""A running job, as a verb sees it: its folder, its progress, its sides."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from samebits.kernels.adapters.setup import machine
from samebits.tools.schema.results import Event
from samebits.tools.sides.session import Deadline, Session

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from samebits.tools.schema.experiment import Experiment


@dataclass(slots=True)
class Job:
    """What `run_VERB(request, job)` gets. Artifacts go under `job.folder`; progress through `job.emit`."""

    folder: Path
    events: Path | None = None
    """Where progress is written; None: events.jsonl of the folder."""
    counter: dict[str, int] = field(default_factory=dict)
    prepared: dict[tuple[str, ...], Session] = field(default_factory=dict)
    """Processes of sides that wait to be opened."""
    deadline: Deadline = field(default_factory=Deadline)
    """For every answer of a side that this job opened."""

    def emit(self, phase: str, message: str, done: int | None = None, total: int | None = None) -> None:
        """Append one line to events.jsonl."""
        event = Event(time=time.time(), phase=phase, message=message, done=done, total=total)
        with (self.events or self.folder / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(event.model_dump_json() + "\n")

    def new(self, name: str) -> Path:
        """A fresh path below the job folder: NAME, then NAME-2, NAME-3, ..."""
        self.counter[name] = self.counter.get(name, 0) + 1
        count = self.counter[name]
        return self.folder / (name if count == 1 else f"{name}-{count}")

    def open_side(
        self,
        role: Literal["rollout", "trainer"],
        experiment: Experiment,
        *,
        env: Mapping[str, str] | None = None,
        taps: bool = False,
    ) -> Session:
        """Start a side of this experiment (a context manager)."""
        config = experiment.rollout if role == "rollout" else experiment.trainer
        self.emit("open", f"loading the {role} side: {config.side}")
        waiting = self.prepared.pop(_key(role, experiment, env), None)
        device = device_of(experiment)
        if waiting is None:
            return Session.start(role, experiment, device, self.folder, env=env, taps=taps, deadline=self.deadline)
        waiting.deadline = self.deadline
        waiting.open(experiment, device, taps=taps)
        return waiting

    def prepare(
        self,
        role: Literal["rollout", "trainer"],
        experiment: Experiment,
        *,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start the process of a side that will be opened soon, so that its libraries load meanwhile (on another core;
        with one core there is nothing to gain). Whoever runs the job calls `drop_prepared` at its end.
        """
        key = _key(role, experiment, env)
        if key not in self.prepared and (os.cpu_count() or 1) > 1:
            self.prepared[key] = Session.launch(role, experiment, device_of(experiment), self.folder, env=env)

    def drop_prepared(self) -> None:
        """End what was prepared and never opened."""
        while self.prepared:
            self.prepared.popitem()[1].stop()


def _key(role: str, experiment: Experiment, env: Mapping[str, str] | None) -> tuple[str, ...]:
    """Sides with the same key need the same process: libraries and environment."""
    config = experiment.rollout if role == "rollout" else experiment.trainer
    variables = sorted((dict(config.env) | dict(env or {})).items())
    return (role, config.side, repr(config.kernels), repr(variables), device_of(experiment))


def runs_compiled(experiment: Experiment) -> bool:
    """Whether the rollout side is an engine whose forward is compiled or captured, so that no hook runs inside it."""
    return experiment.rollout.side == "vllm" and not experiment.rollout.eager


def device_of(experiment: Experiment) -> Literal["cpu", "cuda"]:
    """The device of this experiment: as set, or cuda where torch sees one."""
    return machine.device(experiment.device)
