"""Capture and edits around the passes of one score of a PyTorch side."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from samebits.tools.store import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from samebits.tools.schema.sites import CapturePlan, Edit
    from samebits.tools.sides.protocol import RolloutData
    from samebits.tools.sides.scoring.torch_side import TorchSide


@contextmanager
def recorded(
    side: TorchSide, data: RolloutData, plan: CapturePlan | None, edits: tuple[Edit, ...], folder: Path
) -> Iterator[None]:
    """Record what runs inside; the Capture artifact is written only when it ends well."""
    from samebits.tools.capture.recorder import Recorder

    lengths = [len(sequence.tokens) if sequence.sampled else 0 for sequence in data.sequences]
    chosen = range(len(lengths)) if plan is None or plan.sequences is None else plan.sequences
    rows = sum(lengths[i] for i in chosen if i < len(lengths))
    with Recorder(side.module, side, plan, edits, side.role, expected_rows=rows) as recorder:
        side.recorder = recorder
        try:
            yield
        finally:
            side.recorder = None
    if plan is not None:
        recorder.write(folder / "capture", lengths=lengths, environment=fingerprint.environment())
