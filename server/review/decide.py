"""A person's decision, written down. The page and the terminal come here."""

from __future__ import annotations

import os
import pwd
import time
from typing import TYPE_CHECKING, Literal

from samebits.tools.schema import reviews
from samebits.tools.schema.artifacts.review import ReviewManifest
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.proposals import open_proposal

if TYPE_CHECKING:
    from pathlib import Path

NOTE_CHARS = 2000


def decide(
    folder: Path, seen: str, decision: Literal["approved", "rejected"], note: str, surface: Literal["page", "terminal"]
) -> ReviewManifest:
    """Write a decision down.

    Args:
        seen: digest of the proposal that the person looked at.

    Raises:
        UserError: the proposal is another one now, a rejection says nothing, or it cannot be written.
    """
    proposal = open_proposal(folder)
    if proposal.digest != seen:
        raise UserError("this proposal", "changed while it was looked at", "look at it again, and decide then")
    note = "\n".join(line.rstrip() for line in note.strip().splitlines())[:NOTE_CHARS]
    if decision == "rejected" and not note:
        raise UserError("a rejection without a note", "tells the proposer nothing", "say what should change")
    manifest = proposal.manifest
    review = ReviewManifest(
        made_from={"proposal": proposal.digest},
        decision=decision,
        note=note,
        patch=manifest.patch,
        base=manifest.base,
        candidate_digest=manifest.candidate_digest,
        evidence=dict(manifest.made_from),
        surface=surface,
        reviewer=login(),
        time=time.time(),
    )
    return reviews.write(proposal, review)


def login() -> str:
    """Login name of this process's user; no variable of the environment is asked."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
