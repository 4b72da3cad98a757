"""Which modules of the two sides use the same weights.

A weight is known by the digests of its rows. A merged weight (qkv, gate and up) is the concatenation of its parts, so
the part's rows are found as a run inside it. Trivial weights (norms of ones, zero biases) identify nothing and are left
out.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from samebits.tools.schema.artifacts.weights import SideWeights, WeightView


@dataclass(slots=True, frozen=True)
class Anchor:
    """A module of each side that use the same weight rows."""

    rollout: str
    trainer: str
    rollout_rows: tuple[int, int]
    """Rows [a, b) of the rollout's weight."""
    trainer_rows: tuple[int, int]
    rollout_total: int
    trainer_total: int


def anchors(rollout: SideWeights, trainer: SideWeights) -> list[Anchor]:
    """Every pair of modules sharing non-trivial weight rows.

    A weight used by several modules of a side (tied embeddings) is paired use by use, in the order the sides list them.
    """
    found: list[Anchor] = []
    ours = _by_first_row(rollout)
    uses: dict[tuple[str, ...], int] = defaultdict(int)
    for part in _usable(trainer):
        hits = [
            (whole, start)
            for whole, start in ours.get(part.rows[0], [])
            if whole.rows[start : start + len(part.rows)] == part.rows
        ]
        if hits:
            turn = min(uses[part.rows], len(hits) - 1)
            uses[part.rows] += 1
            whole, start = hits[turn]
            found.append(
                Anchor(
                    whole.module,
                    part.module,
                    (start, start + len(part.rows)),
                    (0, len(part.rows)),
                    len(whole.rows),
                    len(part.rows),
                )
            )
            continue
        found += _parts_of(part, rollout)
    return found


def _usable(side: SideWeights) -> list[WeightView]:
    return [view for view in side.weights if not view.trivial and view.rows and not view.name.endswith("bias")]


def _by_first_row(side: SideWeights) -> dict[str, list[tuple[WeightView, int]]]:
    index: dict[str, list[tuple[WeightView, int]]] = defaultdict(list)
    for view in _usable(side):
        for number, row in enumerate(view.rows):
            index[row].append((view, number))
    return index


def _parts_of(whole: WeightView, rollout: SideWeights) -> list[Anchor]:
    """The trainer has the merged weight and the rollout its parts."""
    starts = {row: number for number, row in reversed(list(enumerate(whole.rows)))}
    found = []
    for part in _usable(rollout):
        start = starts.get(part.rows[0])
        if start is not None and whole.rows[start : start + len(part.rows)] == part.rows:
            found.append(
                Anchor(
                    part.module,
                    whole.module,
                    (0, len(part.rows)),
                    (start, start + len(part.rows)),
                    len(part.rows),
                    len(whole.rows),
                )
            )
    return found
