"""What `samebits demo` found, step by step: the input of its report page."""

from __future__ import annotations

from typing import Literal

from samebits.tools.schema.artifacts.base import Manifest
from samebits.tools.schema.artifacts.divergence import WorkItem
from samebits.tools.schema.artifacts.gap import GapStats
from samebits.tools.schema.base import Model


class DemoStep(Model):
    number: int
    title: str
    text: str
    """What was done and seen, each number live."""
    held: bool
    """It saw what it had to see."""
    stats: GapStats | None = None
    seconds: float


class DemoManifest(Manifest):
    kind: Literal["demo"] = "demo"
    model: str
    """Family and size in words."""
    steps: tuple[DemoStep, ...]
    work: tuple[WorkItem, ...]
    layers: tuple[tuple[str, int, int], ...]
    before: tuple[float, ...]
    """|rollout - trainer| of every sampled token before, nats."""
    after: tuple[float, ...]
    sides: dict[str, tuple[str, ...]]
    exact: bool
    tokens: int
