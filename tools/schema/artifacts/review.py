"""Review: what a person decided about one proposal, bound to every digest of it."""

from __future__ import annotations

from typing import Literal

from samebits.tools.schema.artifacts.base import Manifest


class ReviewManifest(Manifest):
    """`made_from["proposal"]` is the sha256 of the proposal's manifest. Kept outside the project (tools/schema/
    reviews.py).
    """

    kind: Literal["review"] = "review"
    decision: Literal["approved", "rejected"]
    note: str
    patch: str
    base: str
    candidate_digest: str
    evidence: dict[str, str]
    """`made_from` of the proposal."""
    surface: Literal["page", "terminal"]
    """Where the person decided."""
    reviewer: str
    """Login name of the user whose terminal showed the code."""
    time: float
    """Unix seconds."""
    seal: str = ""
    """HMAC-SHA256 over all other fields with a key of this user: a record that was edited or copied does not count."""
