"""A running job, as a verb sees it: its folder, its progress, its sides."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from samebits.tools.schema.results import Event
from samebits.tools.sides.session import Session

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
        return Session.start(role, experiment, device_of(experiment), self.folder, env=env, taps=taps)


def device_of(experiment: Experiment) -> Literal["cpu", "cuda"]:
    """The device of this experiment: as set, or cuda where torch sees one."""
    if experiment.device != "auto":
        return experiment.device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
