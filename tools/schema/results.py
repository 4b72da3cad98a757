"""How a job ended, and the flat answer every verb and tool gives."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from samebits.tools.schema.base import Model

Cell = str | int | float | bool | None


class Result(Model):
    """One flat answer: what a person or an agent reads first. Details are in the artifacts named by `ids`."""

    verdict: Literal["equal", "differs", "unjudged", "done"]
    """equal and done exit 0, differs exits 1, unjudged exits 2."""
    summary: str
    """A few sentences: what was found, and what to call next."""
    closing: str = ""
    """Said last, after the table: the one line of a story of several steps."""
    ids: dict[str, str] = {}
    """Artifacts made, by kind: paths relative to the job's run folder."""
    rows: tuple[dict[str, Cell], ...] = ()
    """The table of the answer, most important first."""
    truncated: bool = False
    total: int = 0
    """Rows there are in all."""
    next: str = ""
    """The next verb, spelled out."""

    @property
    def exit_code(self) -> int:
        """0 equal or done, 1 differs, 2 could not judge."""
        return {"equal": 0, "done": 0, "differs": 1, "unjudged": 2}[self.verdict]


class Succeeded(Model):
    state: Literal["succeeded"] = "succeeded"
    result: Result


class Failed(Model):
    state: Literal["failed"] = "failed"
    error: Literal["user", "side_died", "resource", "node_lost", "internal"]
    """user: bad input; side_died: an engine or trainer process ended; resource: disk or memory; node_lost: the machine
    of a cluster that carried it out is gone; internal: our fault."""
    message: str


class Cancelled(Model):
    state: Literal["cancelled"] = "cancelled"
    note: str = ""
    """What it left behind."""


class TimedOut(Model):
    state: Literal["timed_out"] = "timed_out"
    limit_s: float
    phase: str = ""
    """Whose limit it was; "": the whole job's."""
    note: str = ""
    """What it left behind."""

    @property
    def words(self) -> str:
        """What was passed, and the key of samebits.toml that says so."""
        if self.phase:
            return f"its phase {self.phase!r} took over {self.limit_s:.0f} s. Next: raise pool.phase_time_limit_s"
        return f"its time limit of {self.limit_s:.0f} s. Next: raise pool.time_limit_s"


Outcome = Annotated[Succeeded | Failed | Cancelled | TimedOut, Field(discriminator="state")]
OUTCOME: TypeAdapter[Outcome] = TypeAdapter(Outcome)


class Event(Model):
    """One line of events.jsonl."""

    time: float
    """Unix seconds."""
    phase: str
    message: str
    done: int | None = None
    total: int | None = None
