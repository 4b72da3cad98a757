"""Decisions of persons, kept outside every project, each sealed with a key of this user.

The seal keeps a record from being edited or copied to another proposal by accident or by a tool that writes files. It
is no wall against a program of the same user that sets out to read the key; docs/review.md says what is.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from samebits.tools.schema.artifacts.review import ReviewManifest
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from samebits.tools.schema.proposals import Proposal

KEY_BYTES = 32


def home() -> Path:
    """$XDG_STATE_HOME/samebits, else ~/.local/state/samebits."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state") / "samebits"


def place(digest: str) -> Path:
    """Where the decision on a proposal (by its digest) is kept."""
    return home() / "reviews" / f"{digest}.json"


def write(proposal: Proposal, review: ReviewManifest) -> ReviewManifest:
    """Seal and keep a decision, in the place of an earlier one on the same proposal.

    Raises:
        UserError: it cannot be written.
    """
    path = place(proposal.digest)
    try:
        make_folder(path.parent)
        sealed = review.model_copy(update={"seal": seal_of(review, key(make=True))})
        part = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(sealed.model_dump_json(indent=1))
        part.replace(path)
    except OSError as error:
        raise UserError(str(error.filename or path), error.strerror or str(error), "check the path and the disk") from (
            error
        )
    return sealed


def find(proposal: Proposal) -> ReviewManifest | None:
    """The decision on this proposal, every digest compared; None: nobody decided.

    Raises:
        UserError: there is a record that is not about this proposal, or was changed since a person made it.
    """
    path = place(proposal.digest)
    try:
        review = ReviewManifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise forged(path, "it cannot be read") from error
    manifest = proposal.manifest
    bound = {
        "proposal": (review.made_from.get("proposal"), proposal.digest),
        "patch": (review.patch, manifest.patch),
        "base commit": (review.base, manifest.base),
        "candidate": (review.candidate_digest, manifest.candidate_digest),
        "evidence": (review.evidence, manifest.made_from),
    }
    for name, (recorded, present) in bound.items():
        if recorded != present:
            raise forged(path, f"it was given to another {name}")
    secret = key()
    if not secret or not hmac.compare_digest(review.seal, seal_of(review, secret)):
        raise forged(path, "its seal is not that of a decision made here")
    return review


def forged(path: Path, reason: str) -> UserError:
    """A record that is no approval."""
    return UserError(
        f"the review {path.name[:12]}",
        f"does not count: {reason}",
        "not reviewed; ask the person to run `samebits review` and decide on this very proposal",
    )


def seal_of(review: ReviewManifest, secret: bytes) -> str:
    """HMAC-SHA256 of every field but the seal."""
    text = review.model_copy(update={"seal": ""}).model_dump_json()
    return hmac.new(secret, text.encode("utf-8"), hashlib.sha256).hexdigest()


def key(*, make: bool = False) -> bytes:
    """This user's key; empty when there is none and none is to be made."""
    path = home() / "review.key"
    if make and not path.exists():
        make_folder(path.parent)
        part = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        try:
            os.link(part, path)  # the first of two that make it at once stands
        except FileExistsError:
            pass
        finally:
            part.unlink()
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return b""
    return data if len(data) == KEY_BYTES else b""


def make_folder(folder: Path) -> None:
    """A folder below `home`, of this user's alone."""
    home().parent.mkdir(parents=True, exist_ok=True)
    for part in (home(), folder):
        part.mkdir(exist_ok=True, mode=0o700)
