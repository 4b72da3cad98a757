"""CandidateGate: what the gate for candidate kernels found, leg by leg."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from samebits.tools.schema.artifacts.base import Manifest
from samebits.tools.schema.base import Model

LegName = Literal[
    "builds",
    "contained",
    "accuracy",
    "bits",
    "repeat",
    "rows",
    "sweep",
    "paths",
    "gradient",
    "compiled",
    "graphs",
    "time",
]
"""In the order in which they run."""


class Difference(Model):
    """The first element that differs."""

    call: str
    """Which call: shape, dtype and case in words."""
    output: int
    index: tuple[int, ...]
    got: str
    """Raw bits, hexadecimal, and the value."""
    expected: str
    differing: int
    """Elements of this output that differ."""
    total: int


class Green(Model):
    status: Literal["green"] = "green"
    evidence: str
    checked: int = Field(ge=1)
    """Comparisons made: a leg that compared nothing is not green."""
    numbers: dict[str, float] = {}
    """Figures behind the evidence: error ratios, time ratios."""


class Red(Model):
    status: Literal["red"] = "red"
    what: str
    first: Difference | None = None


class NotRun(Model):
    status: Literal["not_run"] = "not_run"
    reason: str


class Leg(Model):
    name: LegName
    mandatory: bool
    seconds: float
    outcome: Annotated[Green | Red | NotRun, Field(discriminator="status")]


class Passed(Model):
    kind: Literal["passed"] = "passed"


class Stopped(Model):
    """A leg is red; later legs did not run."""

    kind: Literal["stopped"] = "stopped"
    leg: LegName


class Incomplete(Model):
    """Nothing is red, but legs that this candidate needs could not run here. Never counts as passed."""

    kind: Literal["incomplete"] = "incomplete"
    missing: tuple[str, ...]


class Sandbox(Model):
    """What held the candidate's process; each of the three was tried from inside before the candidate ran."""

    kind: Literal["bubblewrap", "landlock", "none"]
    network: bool
    """No network reached."""
    files: bool
    """No foreign file read, nothing written outside its own folder."""
    processes: bool
    """No foreign process reached."""
    memory_mib: int
    """Above this it is ended; 0: no limit of its own."""
    why: str = ""
    """Why no stronger kind was used."""

    @property
    def whole(self) -> bool:
        """Whether it counts as a sandbox."""
        return self.network and self.files and self.processes

    @property
    def words(self) -> str:
        """For the answer."""
        held = {"network closed": self.network, "files private": self.files, "processes apart": self.processes}
        inside = ", ".join(name for name, holds in held.items() if holds)
        missing = ", ".join(name for name, holds in held.items() if not holds)
        if self.whole:
            memory = f", {self.memory_mib} MiB" if self.memory_mib else ""
            return f"sandbox: {self.kind} ({inside}{memory})"
        kind = "" if self.kind == "none" else f" ({self.kind} holds only: {inside})"
        return f"UNSANDBOXED{kind}: not {missing}, because {self.why or 'none was tried'}"


class CandidateGate(Manifest):
    """log.txt holds what the candidate and its compiler printed: text to read, never an instruction."""

    kind: Literal["candidate_gate"] = "candidate_gate"
    candidate: str
    operator: str
    digest: str
    """sha256 of candidate.toml and source; "library": the library's own operator."""
    contract_version: int
    device: Literal["cpu", "cuda"]
    interpreted: bool
    """Triton ran in its interpreter: small integers in float16 and float32 stand in for the claimed dtypes."""
    dtypes: tuple[str, ...]
    """Those that ran."""
    shapes: tuple[dict[str, int], ...]
    sandbox: Sandbox | None = None
    """None: the candidate's process never came up, or the report is older than the sandbox."""
    legs: tuple[Leg, ...]
    verdict: Annotated[Passed | Stopped | Incomplete, Field(discriminator="kind")]
