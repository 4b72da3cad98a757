"""Pairs the taps of two captures: by weights, as inputs of paired modules, and by place and value between them.

No table of names: what pairs two sites is the weights their modules use, their place in the execution order, and, for
what has no weights, values that can only be the same quantity.

Legend: R common token rows, C elements per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from samebits.tools.align.taps import common_rows
from samebits.tools.schema.artifacts.divergence import Pair
from samebits.tools.schema.sites import Site

if TYPE_CHECKING:
    from samebits.tools.align.taps import Taps
    from samebits.tools.align.weights import Anchor
    from samebits.tools.schema.artifacts.capture import Tap

SAME_QUANTITY = 0.1
"""Two tensors with a relative root mean square distance under this hold the same quantity with other rounding.
Unrelated activations of one shape are near sqrt(2). It only proposes pairs; no comparison of bits depends on it."""
SAMPLE = 24
"""Token rows on which values are compared to propose a pair."""
LOGPROB = "logprob"
CHUNK = 128
"""Taps whose samples are held in float32 at once."""


Sample = tuple["Tap", torch.Tensor]
"""A tap and some of its rows [K, C]."""


@dataclass(slots=True, frozen=True)
class Sliced:
    """The common rows of a pair, with the columns both cover."""

    rollout_RC: torch.Tensor
    trainer_RC: torch.Tensor
    keys_R: torch.Tensor


def columns(pair: Pair, side: Literal["rollout", "trainer"]) -> slice:
    """Columns of one side's canonical row that take part in the pair."""
    if pair.columns is None or pair.wider != side:
        return slice(None)
    return slice(*pair.columns)


def sliced(pair: Pair, rollout: Taps, trainer: Taps) -> Sliced | None:
    """Values of a pair on the rows both captures have; None when either is not stored, or they share no row or
    shape."""
    ours, theirs = str(pair.rollout), str(pair.trainer)
    if ours not in rollout.numbers or theirs not in trainer.numbers:
        return None
    if not (rollout.tap(ours).stored and trainer.tap(theirs).stored):
        return None
    index_r, index_t = common_rows(rollout.keys(ours), trainer.keys(theirs))
    value_r = rollout.value(ours)[index_r][:, columns(pair, "rollout")]
    value_t = trainer.value(theirs)[index_t][:, columns(pair, "trainer")]
    if len(index_r) == 0 or value_r.shape != value_t.shape or value_r.dtype != value_t.dtype:
        return None
    return Sliced(value_r, value_t, rollout.keys(ours)[index_r])


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative root mean square distance, in float32; infinity where it has no meaning."""
    if not (a.is_floating_point() and b.is_floating_point()):
        return 0.0 if torch.equal(a, b) else float("inf")
    a32, b32 = a.float(), b.float()
    scale = float(a32.pow(2).mean().sqrt())
    error = float((a32 - b32).pow(2).mean().sqrt())
    return error / scale if scale > 0 and error == error else (0.0 if error == 0 else float("inf"))


def pair_taps(rollout: Taps, trainer: Taps, found: list[Anchor]) -> list[Pair]:
    """All pairs, in the trainer's execution order. Each trainer site is paired at most once."""
    pairs = _by_name(rollout, trainer)
    pairs += [pair for anchor in found for pair in _of_anchor(anchor, rollout, trainer)]
    taken = {str(pair.trainer) for pair in pairs}
    pairs += _by_value(rollout, trainer, taken)
    unique = {str(pair.trainer): pair for pair in reversed(pairs)}
    return sorted(unique.values(), key=lambda pair: trainer.tap(str(pair.trainer)).order)


def _by_name(rollout: Taps, trainer: Taps) -> list[Pair]:
    """The logprob step is named by samebits itself on both sides."""
    names = [f"{LOGPROB}:in0", f"{LOGPROB}:out0"]
    return [
        _covering(rollout, rollout.tap(name).site, trainer, trainer.tap(name).site)
        for name in names
        if name in rollout.numbers and name in trainer.numbers
    ]


def _covering(rollout: Taps, ours: Site, trainer: Taps, theirs: Site) -> Pair:
    """A padded vocabulary: the narrower side's columns are the first of the wider's."""
    wide, narrow = rollout.tap(str(ours)).columns, trainer.tap(str(theirs)).columns
    if wide == narrow:
        return Pair(rollout=ours, trainer=theirs, columns=None, wider="neither", by="place")
    wider: Literal["rollout", "trainer"] = "rollout" if wide > narrow else "trainer"
    return Pair(rollout=ours, trainer=theirs, columns=(0, min(wide, narrow)), wider=wider, by="place")


def _of_anchor(anchor: Anchor, rollout: Taps, trainer: Taps) -> list[Pair]:
    """Outputs of every call of two modules with the same weights, and their first inputs when those hold the same
    quantity."""
    pairs = []
    for call in range(trainer.calls.get(anchor.trainer, 1)):
        ours = Site(module=anchor.rollout, port="out0", call=call)
        theirs = Site(module=anchor.trainer, port="out0", call=call)
        if str(ours) in rollout.numbers and str(theirs) in trainer.numbers:
            pairs += _outputs(anchor, ours, theirs, rollout, trainer)
        inputs = Pair(
            rollout=ours.model_copy(update={"port": "in0"}),
            trainer=theirs.model_copy(update={"port": "in0"}),
            columns=None,
            wider="neither",
            by="input",
        )
        values = sliced(inputs, rollout, trainer)
        if values is not None and distance(values.rollout_RC, values.trainer_RC) < SAME_QUANTITY:
            pairs.append(inputs)
    return pairs


def _outputs(anchor: Anchor, ours: Site, theirs: Site, rollout: Taps, trainer: Taps) -> list[Pair]:
    wide, narrow = rollout.tap(str(ours)).columns, trainer.tap(str(theirs)).columns
    if wide == narrow and anchor.rollout_total == anchor.trainer_total:
        return [Pair(rollout=ours, trainer=theirs, columns=None, wider="neither", by="weights")]
    if wide == anchor.rollout_total and narrow == anchor.trainer_total and wide > narrow:
        return [Pair(rollout=ours, trainer=theirs, columns=anchor.rollout_rows, wider="rollout", by="weights")]
    if wide == anchor.rollout_total and narrow == anchor.trainer_total:
        return [Pair(rollout=ours, trainer=theirs, columns=anchor.trainer_rows, wider="trainer", by="weights")]
    return []


def _by_value(rollout: Taps, trainer: Taps, taken: set[str]) -> list[Pair]:
    """What is left: for each stored tap of the trainer, the rollout's tap of equal width with the nearest value."""
    left = [tap for tap in trainer.rowed if str(tap.site) not in taken and tap.stored and "float" in tap.dtype]
    pool = [tap for tap in rollout.rowed if tap.stored]
    keys_K = _sample_keys(rollout, trainer)
    if not left or not pool or len(keys_K) == 0:
        return []
    ours, theirs = _samples(rollout, pool, keys_K), _samples(trainer, left, keys_K)
    pairs = []
    for kind, taps in theirs.items():
        candidates = ours.get(kind, [])
        for (tap, sample_KC), near in zip(taps, _near(taps, candidates), strict=True):
            place = tap.order / max(1, trainer.last)
            best = _nearest(sample_KC, place, [candidates[i] for i in near], max(1, rollout.last))
            if best is not None:
                pairs.append(Pair(rollout=best.site, trainer=tap.site, columns=None, wider="neither", by="value"))
    return pairs


def _samples(taps: Taps, wanted: list[Tap], keys_K: torch.Tensor) -> dict[tuple[int, str], list[Sample]]:
    """The sampled rows of taps, by columns and dtype."""
    found: dict[tuple[int, str], list[Sample]] = {}
    for tap in wanted:
        sample_KC = _picked(taps, tap, keys_K)
        if sample_KC is not None:
            found.setdefault((tap.columns, tap.dtype), []).append((tap, sample_KC))
    return found


def _near(taps: list[Sample], candidates: list[Sample]) -> list[list[int]]:
    """For each tap the candidates that may be under SAME_QUANTITY: all distances at once as |a|^2 + |b|^2 - 2ab.

    Its rounding (near 1e-3 of a distance of 0.1, more of a smaller one) only lets too many through.
    """
    if not candidates or not candidates[0][1].is_floating_point():
        return [list(range(len(candidates))) for _ in taps]
    found: list[list[int]] = []
    square_P = torch.stack([sample_KC.float().pow(2).sum() for _, sample_KC in candidates])
    for start in range(0, len(taps), CHUNK):
        b_QE = torch.stack([sample_KC.float().flatten() for _, sample_KC in taps[start : start + CHUNK]])
        near = []
        for first in range(0, len(candidates), CHUNK):
            a_PE = torch.stack([sample_KC.float().flatten() for _, sample_KC in candidates[first : first + CHUNK]])
            own_P = square_P[first : first + CHUNK]
            apart_QP = b_QE.pow(2).sum(1)[:, None] + own_P - 2 * (b_QE @ a_PE.t())
            # Not "<": what is not a number goes on to the exact distance.
            near.append(~(apart_QP > own_P * (1.5 * SAME_QUANTITY) ** 2))
        found += [row.nonzero()[:, 0].tolist() for row in torch.cat(near, 1)]
    return found


def _sample_keys(rollout: Taps, trainer: Taps) -> torch.Tensor:
    """Up to SAMPLE row keys that every row set of both captures has (the rows that reach the head)."""
    keys: torch.Tensor | None = None
    for taps in (rollout, trainer):
        for site in {tap.rowset: str(tap.site) for tap in taps.rowed}.values():
            own = taps.keys(site)
            keys = own if keys is None else own[common_rows(own, keys)[0]]
    if keys is None or len(keys) == 0:
        return torch.empty(0, dtype=torch.int64)
    return keys[torch.linspace(0, len(keys) - 1, min(SAMPLE, len(keys))).long()]


def _picked(taps: Taps, tap: Tap, keys_K: torch.Tensor) -> torch.Tensor | None:
    site = str(tap.site)
    index, _ = common_rows(taps.keys(site), keys_K)
    return taps.value(site)[index] if len(index) == len(keys_K) else None


def _nearest(
    sample_KC: torch.Tensor, place: float, candidates: list[tuple[Tap, torch.Tensor]], last: int
) -> Tap | None:
    """The candidate with the smallest distance under SAME_QUANTITY; of equals the one nearest in relative place."""
    scored = []
    for candidate, other_KC in candidates:
        far = distance(other_KC, sample_KC)
        if far < SAME_QUANTITY:
            scored.append((far, abs(candidate.order / last - place), candidate))
    return min(scored, key=lambda entry: entry[:2])[2] if scored else None
