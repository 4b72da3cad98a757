"""Repro: one operator cut out into a folder that runs by itself."""

from __future__ import annotations

from typing import Literal

from samebits.tools.schema.artifacts.base import Manifest


class ReproManifest(Manifest):
    """The folder holds repro.py (exit 0 equal, 1 differs, 2 could not run), inputs.safetensors and README.md."""

    kind: Literal["repro"] = "repro"
    operator: int
    """Index in the work list of the divergence."""
    operator_kind: str
    rollout: str
    """Code that stands for the side, in words; it gives the captured bits on the captured inputs."""
    trainer: str
    needs_vllm: bool
    shrunk: str
    """How far, in words."""
    before: dict[str, int]
    """Length of each axis, by its letter."""
    after: dict[str, int]
    runs: int
    """Times both sides were run while shrinking."""
    fingerprint: str
