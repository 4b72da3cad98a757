"""What can be said against a request before a job is made: names that lead nowhere. The worker checks again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from samebits.tools.schema import stored
from samebits.tools.schema.artifacts.candidate_gate import CandidateGate
from samebits.tools.schema.artifacts.divergence import DivergenceManifest
from samebits.tools.schema.artifacts.proposal import ProposalManifest
from samebits.tools.schema.artifacts.repro import ReproManifest
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import ApplyRequest, BuildRequest, MinimizeRequest, ProposeRequest

if TYPE_CHECKING:
    from samebits.tools.schema.requests import Request

OPERATORS = Path(__file__).parents[2] / "kernels" / "ops"
CANDIDATE = "candidate.toml"


def check(request: Request) -> None:
    """Whether what a request names is there.

    Raises:
        UserError: no such candidate, operator or artifact.
    """
    match request:
        case BuildRequest(candidate=named):
            check_named(named)
        case MinimizeRequest(divergence=named, operator=index):
            check_index(stored.read(Path(named), DivergenceManifest, check=False), named, index)
        case ProposeRequest(candidate=named, gate=gate, repro=repro):
            check_folder(Path(named))
            stored.read(Path(gate), CandidateGate, check=False)
            if repro:
                stored.read(Path(repro), ReproManifest, check=False)
        case ApplyRequest(proposal=named):
            stored.read(Path(named), ProposalManifest, check=False)


def operators() -> list[str]:
    """Names of the library's operators: each has a folder."""
    return sorted(path.parent.name for path in OPERATORS.glob("*/op.py"))


def check_named(named: str) -> None:
    """A candidate: a folder, or a library operator's name.

    Raises:
        UserError: neither.
    """
    if named in operators():
        return
    if not Path(named).is_dir():
        raise UserError(
            named,
            "neither a candidate folder nor a library operator",
            f"give a folder, or one of {', '.join(operators())}",
        )
    check_folder(Path(named))


def check_folder(folder: Path) -> None:
    """A candidate's folder.

    Raises:
        UserError: it is none.
    """
    if not (folder / CANDIDATE).is_file():
        what = f"no {CANDIDATE} in it" if folder.is_dir() else "no such folder"
        raise UserError(str(folder), what, "give a candidate's folder; docs/candidates.md shows one")


def check_index(divergence: DivergenceManifest, named: str, index: int | None) -> None:
    """An operator of a work list; None: any.

    Raises:
        UserError: the list is shorter, or empty.
    """
    if index is None and not divergence.work:
        raise UserError(named, "its work list is empty", "there is nothing to cut out: see what samebits diff says")
    if index is not None and index >= len(divergence.work):
        reason = f"its work list has {len(divergence.work)} operators"
        raise UserError(f"operator {index} of {named}", reason, "give an index of that list")
