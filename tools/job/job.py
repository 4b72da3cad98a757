"""A running job, as a verb sees it: its folder, its progress, its sides."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from samebits.kernels.adapters.setup import machine
from samebits.tools.job.stopping import check
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
    kept: dict[tuple[str, ...], Session | None] = field(default_factory=dict)
    """Sides that stay open from one verb to the next, by what they were opened with; None: not opened yet."""
    deadline: Deadline = field(default_factory=Deadline)
    """For every answer of a side that this job opened."""

    def emit(self, phase: str, message: str, done: int | None = None, total: int | None = None) -> None:
        """Append one line to events.jsonl.

        Raises:
            Stopped: the job was asked to end and has not noticed.
        """
        check()
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
        """Start a side of this experiment (a context manager), or give the kept one that was opened with the same."""
        config = experiment.rollout if role == "rollout" else experiment.trainer
        key = _model_key(role, experiment, env, taps=taps)
        kept = self.kept.get(key)
        if kept is not None and kept.running:
            kept.deadline = self.deadline
            return kept
        self.emit("open", f"loading the {role} side: {config.side}")
        device = device_of(experiment)
        session = self.prepared.pop(_key(role, experiment, env), None)
        if session is None:
            session = Session.start(role, experiment, device, self.folder, env=env, taps=taps, deadline=self.deadline)
        else:
            session.deadline = self.deadline
            session.open(experiment, device, taps=taps)
        if key in self.kept:
            session.kept, self.kept[key] = True, session
        return session

    def keep(self, role: Literal["rollout", "trainer"], experiment: Experiment) -> None:
        """From now on this side stays open when whoever opened it is done with it: the next verb of this job that asks
        for the same gets it as it is, with the weights that were pushed into it. On a GPU nothing is kept: it has room
        for one side.
        """
        if device_of(experiment) == "cpu":
            self.kept.setdefault(_model_key(role, experiment, None, taps=False))

    def release(self, role: Literal["rollout", "trainer"], experiment: Experiment) -> None:
        """End a kept side."""
        session = self.kept.pop(_model_key(role, experiment, None, taps=False), None)
        if session is not None:
            session.end()

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
        kept = self.kept.get(_model_key(role, experiment, env, taps=False))
        if kept is not None and kept.running:
            return
        if key not in self.prepared and (os.cpu_count() or 1) > 1:
            self.prepared[key] = Session.launch(role, experiment, device_of(experiment), self.folder, env=env)

    def drop_prepared(self) -> None:
        """End what was prepared and never opened, and what was kept."""
        while self.prepared:
            self.prepared.popitem()[1].stop()
        while self.kept:
            session = self.kept.popitem()[1]
            if session is not None:
                session.end(hurry=True)


def _key(role: str, experiment: Experiment, env: Mapping[str, str] | None) -> tuple[str, ...]:
    """Sides with the same key need the same process: libraries and environment."""
    config = experiment.rollout if role == "rollout" else experiment.trainer
    variables = sorted((dict(config.env) | dict(env or {})).items())
    return (role, config.side, repr(config.kernels), repr(variables), device_of(experiment))


def _model_key(role: str, experiment: Experiment, env: Mapping[str, str] | None, *, taps: bool) -> tuple[str, ...]:
    """Sides with the same key have the same process, model and settings."""
    config = experiment.rollout if role == "rollout" else experiment.trainer
    model = experiment.rollout.model if role == "rollout" else experiment.trainer_model
    settings = config.model_copy(update={"env": {}}).model_dump_json()  # the environment is in the process's key
    return (*_key(role, experiment, env), str(model), settings, repr(taps))


def runs_compiled(experiment: Experiment) -> bool:
    """Whether the rollout side is an engine whose forward is compiled or captured, so that no hook runs inside it."""
    return experiment.rollout.side == "vllm" and not experiment.rollout.eager


def device_of(experiment: Experiment) -> Literal["cpu", "cuda"]:
    """The device of this experiment: as set, or cuda where torch sees one."""
    return machine.device(experiment.device)
