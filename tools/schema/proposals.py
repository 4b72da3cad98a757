"""Opening a proposal: every file read once, every digest checked on those very bytes. Shared by review and apply."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from samebits.tools.schema import stored
from samebits.tools.schema.artifacts.candidate_gate import CandidateGate
from samebits.tools.schema.artifacts.proposal import GATE, PATCH, REPRO, ProposalManifest
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposal whose parts belong together."""

    folder: Path
    digest: str
    """sha256 of its manifest: what an approval is bound to."""
    manifest: ProposalManifest
    patch: str
    gate: CandidateGate


def open_proposal(folder: Path) -> Proposal:
    """Read a proposal.

    Raises:
        UserError: not a proposal, or any of its parts is not the one its manifest names.
    """
    stored.read(folder, ProposalManifest, check=False)  # says what is wrong with what is no proposal
    raw = _bytes(folder, stored.MANIFEST)
    digest = hashlib.sha256(raw).hexdigest()
    try:
        manifest = ProposalManifest.model_validate_json(raw)
    except ValidationError as error:
        raise damaged(folder / stored.MANIFEST, error.errors()[0]["msg"]) from error
    data = {name: _bytes(folder, name) for name in manifest.files}
    for name, content in data.items():
        if hashlib.sha256(content).hexdigest() != manifest.files[name]:
            raise damaged(folder / name, "its bytes are not those the manifest names")
    bound = {PATCH: manifest.patch, GATE: manifest.made_from.get("candidate_gate", "")}
    if manifest.repro is not None:
        bound[REPRO] = manifest.made_from.get("repro", "")
    for name, expected in bound.items():
        if manifest.files.get(name) != expected:
            raise damaged(folder / name, "not what the proposal is bound to")
    try:
        gate = CandidateGate.model_validate_json(data[GATE])
        patch = data[PATCH].decode("utf-8")
    except ValueError as error:
        raise damaged(folder, str(error)[:200]) from error
    check_gate(gate, manifest.candidate_digest, str(folder))
    return Proposal(folder, digest, manifest, patch, gate)


def check_gate(gate: CandidateGate, digest: str, what: str) -> None:
    """The report must be green and about this very candidate.

    Raises:
        UserError: red, incomplete, or of another candidate.
    """
    if gate.digest != digest:
        raise UserError(
            what,
            f"its gate report is of another candidate (digest {gate.digest[:12]}, the files have {digest[:12]})",
            "`samebits build` this folder as it is now, and propose with that report",
        )
    if gate.verdict.kind == "stopped":
        raise UserError(what, f"its gate is red at leg {gate.verdict.leg!r}", "mend the candidate and build it again")
    if gate.verdict.kind == "incomplete":
        missing = ", ".join(gate.verdict.missing)
        raise UserError(
            what, f"its gate is not complete (not run: {missing})", "`samebits build` it where these legs can run"
        )
    red = [leg.name for leg in gate.legs if leg.outcome.status == "red"]
    lacking = [leg.name for leg in gate.legs if leg.mandatory and leg.outcome.status != "green"]
    if red or lacking or not gate.legs:
        raise UserError(what, "its gate says passed but its legs do not", "build the candidate again")


def damaged(path: Path, reason: str) -> UserError:
    """What a part that does not belong is called."""
    return UserError(str(path), f"damaged: {reason}", "propose again")


def _bytes(folder: Path, name: str) -> bytes:
    path = folder / name
    try:
        if "/" in name or path.is_symlink():
            raise damaged(path, "not a plain file of the folder")
        return path.read_bytes()
    except OSError as error:
        raise damaged(path, error.strerror or str(error)) from error
