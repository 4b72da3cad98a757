"""Edits that put the rollout side's captured values into the trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.tools.schema.sites import Replace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from samebits.tools.align.taps import Taps
    from samebits.tools.schema.artifacts.divergence import Pair


def put_right(pairs: Iterable[Pair], rollout: Taps) -> tuple[Replace, ...]:
    """One Replace per pair: the trainer's site takes the rollout's stored rows."""
    edits = []
    for pair in pairs:
        file, value, rows = rollout.names(str(pair.rollout))
        source = pair.columns if pair.wider == "rollout" else None
        column = pair.columns[0] if pair.columns and pair.wider == "trainer" else 0
        edits.append(Replace(site=pair.trainer, tensors=file, value=value, rows=rows, source=source, column=column))
    return tuple(edits)
