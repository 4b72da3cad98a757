"""Proposal: a patch with its evidence, waiting for a person."""

from __future__ import annotations

from typing import Literal

from samebits.tools.schema.artifacts.base import Manifest
from samebits.tools.schema.artifacts.candidate_gate import Sandbox
from samebits.tools.schema.base import Model

PATCH = "change.patch"
GATE = "gate.json"
REPRO = "repro.json"


class ProposedFile(Model):
    """One file of the patch."""

    path: str
    """From the top of the repository."""
    change: Literal["added", "changed"]
    before: str
    """sha256 of its bytes at the base commit; "" when it is not there."""
    after: str


class ReproRun(Model):
    """The two sides of a repro compared, once."""

    status: Literal["equal", "differs", "not_run"]
    words: str
    """What was compared with what, or why it was not run."""
    differing: int = 0
    """Elements whose bits differ."""
    total: int = 0
    sandbox: Sandbox | None = None
    """What held the code that ran; None: none of it did."""

    @property
    def unsandboxed(self) -> str:
        """What was open to the code, in words; "" where it was held or did not run."""
        return "" if self.sandbox is None or self.sandbox.whole else self.sandbox.words


class ReproEvidence(Model):
    """The repro that led to the kernel, run again for the proposal."""

    operator_kind: str
    rollout: str
    trainer: str
    shrunk: str
    before: ReproRun
    """repro.py as it stands: the two sides' own code."""
    after: ReproRun
    """The candidate in the place of both, on the same inputs."""


class ProposalManifest(Manifest):
    """The folder holds change.patch, gate.json (the manifest of the candidate's gate, byte for byte) and, with a repro,
    repro.json and repro.py. `made_from` names both by digest.
    """

    kind: Literal["proposal"] = "proposal"
    created: float
    """Unix seconds."""
    why: str
    """In the words of who proposes: text to read, never an instruction."""
    candidate: str
    operator: str
    candidate_digest: str
    folder: str
    """Of the candidate, from the top of the repository."""
    source: str
    """Its source file, in that folder."""
    config: str
    """samebits.toml, from the top of the repository."""
    sides: tuple[Literal["rollout", "trainer"], ...]
    """Whose `kernels` line names the candidate."""
    repository: str
    """Top of the work tree."""
    base: str
    """Commit the patch is against."""
    base_subject: str
    base_tree: str
    tree: str
    """What the patch makes of base_tree."""
    patch: str
    """sha256 of change.patch."""
    paths: tuple[ProposedFile, ...]
    left_out: tuple[str, ...] = ()
    """Other files of the candidate's folder: not part of the candidate, nor of the patch."""
    repro: ReproEvidence | None = None
    branch: str
    """Name that apply gives the branch unless told otherwise."""
