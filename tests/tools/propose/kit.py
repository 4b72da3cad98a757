"""A user's repository with a candidate, and proposals made from it. Shared with tests/server/review."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from samebits.kernels.candidate import describe
from samebits.kernels.contract_version import CONTRACT_VERSION
from samebits.server.review.decide import decide
from samebits.tools.job.job import Job
from samebits.tools.propose.apply import run_apply
from samebits.tools.propose.verb import run_propose
from samebits.tools.schema.artifacts.candidate_gate import CandidateGate, Green, Leg, NotRun, Passed, Sandbox
from samebits.tools.schema.proposals import open_proposal
from samebits.tools.schema.requests import ApplyRequest, ProposeRequest
from samebits.tools.schema.results import Result
from samebits.tools.store import artifact

GOOD = Path(__file__).parents[1] / "gate" / "candidate" / "good"
SIDES = ("rollout", "trainer")
TOML = """[rollout]
side = "transformers"
model = "model"
# kernels = "none"             # what samebits puts under this side
dtype = "float32"

[trainer]
kernels = "none"  # for now
dtype = "float32"
"""
NUMBERS = {
    "mean": 1.2, "lowest": 0.9,
    "float32, hidden=60 residual=1, 1 rows: us": 20.0, "float32, hidden=60 residual=1, 1 rows: ratio": 1.6,
    "float32, hidden=60 residual=1, 64 rows: us": 33.0, "float32, hidden=60 residual=1, 64 rows: ratio": 0.9,
}  # fmt: skip
HELD = Sandbox(kind="bubblewrap", network=True, files=True, processes=True, memory_mib=1000)
LEGS = (
    Leg(name="builds", mandatory=True, seconds=0.1, outcome=Green(evidence="loaded", checked=1)),
    Leg(name="bits", mandatory=True, seconds=0.2, outcome=Green(evidence="0 of 9 elements differ", checked=9)),
    Leg(name="graphs", mandatory=False, seconds=0.0, outcome=NotRun(reason="needs a CUDA device")),
    Leg(name="time", mandatory=False, seconds=0.3, outcome=Green(evidence="1.2", checked=2, numbers=NUMBERS)),
)


def git(folder: Path, *arguments: str) -> str:
    """A git command of the user."""
    command = ["git", "-c", "user.name=User", "-c", "user.email=user@example.invalid", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def repository(folder: Path, toml: str = TOML) -> Path:
    """A repository whose samebits.toml is committed, with an uncommitted candidate in kernels/norm."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "samebits.toml").write_text(toml)
    (folder / "train.py").write_text("print('training')\n")
    (folder / ".gitignore").write_text(".samebits/\nmodel/\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "Start of the project")
    shutil.copytree(GOOD, folder / "kernels" / "norm")
    return folder


def gate(place: Path, candidate: Path, **changes: Any) -> Path:
    """A report of the gate for candidates as it would be when green: the gate itself has its own tests."""
    described = describe(candidate)
    report = CandidateGate.model_validate(
        {
            "candidate": described.name,
            "operator": described.operator,
            "digest": described.digest,
            "contract_version": CONTRACT_VERSION,
            "device": "cpu",
            "interpreted": False,
            "dtypes": ("float32",),
            "shapes": ({"hidden": 60, "residual": 1},),
            "legs": LEGS,
            "verdict": Passed(),
            "sandbox": HELD,
        }
        | changes
    )
    artifact.write(place, report, texts={"log.txt": ""})
    return place


def job(project: Path, kind: str) -> Job:
    """A fresh job folder of the project."""
    folder = (
        project
        / ".samebits"
        / "jobs"
        / f"20260101-{time.monotonic_ns() % 10**6:06}-{kind}-{time.time_ns() % 10**8:08x}"
    )
    folder.mkdir(parents=True)
    (folder / "request.json").write_text("{}")  # what makes a folder a job
    return Job(folder)


def propose(project: Path, **changes: Any) -> Path:
    """A proposal of kernels/norm; its folder."""
    candidate = Path(changes.pop("candidate", project / "kernels" / "norm"))
    started = job(project, "propose")
    if "gate" not in changes:
        changes["gate"] = str(gate(started.folder / "candidate-gate", candidate))
    fields = {
        "candidate": str(candidate),
        "config": str(project / "samebits.toml"),
        "why": "One order everywhere.",
        "sides": SIDES,
    }
    run_propose(ProposeRequest.model_validate(fields | changes), started)
    return started.folder / "proposal"


def review(proposal: Path, decision: Any = "approved", note: str = "") -> None:
    """What a person decides."""
    decide(proposal, open_proposal(proposal).digest, decision, note, "terminal")


def apply(project: Path, proposal: Path, **changes: Any) -> tuple[Result, Path]:
    """The answer of apply and its job folder."""
    started = job(project, "apply")
    return run_apply(ApplyRequest.model_validate({"proposal": str(proposal)} | changes), started), started.folder


def state(project: Path) -> tuple[Any, ...]:
    """Everything apply must leave alone: the work tree, the index, what is checked out."""
    files = {
        str(path.relative_to(project)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(project.rglob("*"))
        if path.is_file() and not {".git", ".samebits", "__pycache__"} & set(path.relative_to(project).parts)
    }
    index = project / ".git" / "index"
    return files, index.read_bytes(), index.stat().st_mtime_ns, (project / ".git" / "HEAD").read_text()
