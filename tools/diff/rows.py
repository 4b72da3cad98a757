"""Compares paired taps row by row: by digest where a tap is only digested, by bits where it is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from samebits.tools.align.pairs import sliced
from samebits.tools.align.taps import common_rows
from samebits.tools.diff.bits import compare

if TYPE_CHECKING:
    from samebits.tools.align.taps import Taps
    from samebits.tools.schema.artifacts.divergence import Bits, Pair


@dataclass(slots=True, frozen=True)
class Counted:
    """Rows of one pair."""

    pair: Pair
    rows: int
    differing: int


def by_digest(pairs: list[Pair], rollout: Taps, trainer: Taps) -> list[Counted]:
    """Row digests of every pair that covers whole rows of both sides; others cannot be told by digest and are left
    out."""
    counted = []
    for pair in pairs:
        ours, theirs = str(pair.rollout), str(pair.trainer)
        if pair.wider != "neither" or ours not in rollout.numbers or theirs not in trainer.numbers:
            continue
        index_r, index_t = common_rows(rollout.keys(ours), trainer.keys(theirs))
        differing = (rollout.digests(ours)[index_r] != trainer.digests(theirs)[index_t]).any(dim=1)
        if len(index_r):
            counted.append(Counted(pair, len(index_r), int(differing.sum())))
    return counted


def by_bits(pair: Pair, rollout: Taps, trainer: Taps) -> Bits | None:
    """Bit comparison of a stored pair; None when it cannot be compared."""
    values = sliced(pair, rollout, trainer)
    return None if values is None else compare(values.rollout_RC, values.trainer_RC)
