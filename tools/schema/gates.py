"""Which reports of the gate for candidates this user's own worker made: a seal per report, outside every project.

Anybody who can write to a project can write a file that has the shape of a green report. The worker that ran the gate
seals what it wrote with the key of reviews.py; a report without a seal is shown as such. The same limits hold: it is no
wall against a program of the same user that sets out to read the key.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from samebits.tools.schema import reviews

if TYPE_CHECKING:
    from pathlib import Path

UNSEALED = "the gate's report is not one that this user's worker made on this machine"


def place(identity: str) -> Path:
    """Where the seal of a report (by the sha256 of its manifest) is kept."""
    return reviews.home() / "gates" / identity


def seal(identity: str) -> None:
    """Say that this worker made the report. Where that cannot be written the report stays unsealed, and is shown so."""
    path = place(identity)
    with suppress(OSError):
        secret = reviews.key(make=True)
        reviews.make_folder(path.parent)
        part = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(_seal_of(identity, secret))
        part.replace(path)


def made_here(identity: str) -> bool:
    """Whether a report was sealed by a worker of this user."""
    try:
        found = place(identity).read_text(encoding="ascii")
        secret = reviews.key()
    except (OSError, ValueError):
        return False
    return bool(secret) and hmac.compare_digest(found, _seal_of(identity, secret))


def _seal_of(identity: str, secret: bytes) -> str:
    return hmac.new(secret, f"candidate gate {identity}".encode(), hashlib.sha256).hexdigest()
