"""Evidence: what a divergence keeps of one operator of its work list (see tools/repro/evidence.py)."""

from __future__ import annotations

from typing import Literal

from samebits.tools.schema.base import Model

Scalar = bool | int | float | str


class Evidence(Model):
    """operator-K.json."""

    kind: str
    scalars: dict[str, Scalar] = {}
    """eps, scale, top_k, ... as the operator had them."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the arithmetics gave these bits."""
    rows: int
    """Token rows kept."""
    rows_seen: int
    rollout: dict[str, str] | None = None
    """Options of the plain arithmetic that gives every bit of the rollout's output; None: none does."""
    trainer: dict[str, str] | None = None
