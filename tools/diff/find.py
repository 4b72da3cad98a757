"""Finds every operator that differs by itself.

One pass of the trainer in which each paired site is recorded and then takes the rollout's value: every operator then
sees inputs that are bit-equal to the rollout's, and a site whose own value still differs names an operator (or region)
at fault. Regions that are not one module are split by a second pass over their dispatcher operators.

Legend: R common token rows, C elements per row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from samebits.tools.align.pairs import pair_taps, sliced
from samebits.tools.align.taps import producer
from samebits.tools.diff.force import put_right
from samebits.tools.diff.kinds import kind_of
from samebits.tools.diff.rows import by_bits
from samebits.tools.schema.artifacts.divergence import Pair
from samebits.tools.schema.sites import CapturePlan

if TYPE_CHECKING:
    import torch

    from samebits.tools.align.taps import Taps
    from samebits.tools.align.weights import Anchor
    from samebits.tools.diff.asking import Asker
    from samebits.tools.schema.artifacts.divergence import Bits
    from samebits.tools.schema.sites import Site


@dataclass(slots=True)
class Suspect:
    """A trainer site whose own value differs although everything before it is the rollout's."""

    pair: Pair
    bits: Bits
    container: str
    """Module whose forward computes it: the module itself for an output, its parent for an input."""
    leaf: bool
    """The container calls no other module: one operator."""
    operators: tuple[str, ...] = ()
    """Dispatcher operators that ran between the paired site before it and this one."""
    inputs: tuple[Pair, ...] = ()

    @property
    def kind(self) -> str:
        """Kind of operator, told from what ran. What a router's own weight gives is its logits: a linear."""
        if self.pair.trainer.module == "logprob" and self.pair.trainer.port.startswith("out"):
            return "logprob"
        kind = kind_of(self.operators)
        return "linear" if kind == "router" and self.leaf and self.pair.by == "weights" else kind


@dataclass(slots=True)
class Found:
    """What the search gives."""

    pairs: list[Pair]
    suspects: list[Suspect]
    natural: Taps
    """Trainer, stored, nothing put right."""
    forced: Taps
    """Trainer, stored at module level, everything put right."""
    operators: Taps | None
    """Trainer, stored at operator level inside the suspects' containers, everything put right."""
    compared: int
    not_compared: list[str] = field(default_factory=list)


def container_of(site: Site) -> str:
    """Path of the module whose forward computes the value at a site."""
    if site.op or site.port.startswith("out"):
        return site.module
    return site.module.rpartition(".")[0]


def find(asker: Asker, rollout: Taps, anchors: list[Anchor], plan: CapturePlan) -> Found:
    """Search with the rollout's stored module-level capture `rollout`; `plan` stores the same rows on the trainer."""
    say = partial(asker.job.emit, "pass 2")
    say("tensors of the trainer")
    natural = asker.score("trainer", "stored", plan).taps
    say(f"pairing {len(rollout.manifest.taps)} with {len(natural.manifest.taps)} sites")
    pairs = pair_taps(rollout, natural, anchors)
    say(f"the trainer with {len(pairs)} sites put right")
    forced = asker.score("trainer", "forced", plan, put_right(pairs, rollout)).taps
    late = _late(pairs, pair_taps(rollout, forced, anchors))
    if late:
        say(f"the trainer again: {len(late)} sites paired late")
        pairs = sorted(pairs + late, key=lambda pair: natural.tap(str(pair.trainer)).order)
        forced = asker.score("trainer", "forced", plan, put_right(pairs, rollout)).taps
    say(f"comparing {len(pairs)} sites")
    suspects = _differing(pairs, rollout, forced)
    found = Found(pairs, suspects, natural, forced, None, compared=len(pairs))
    containers = tuple(
        sorted({suspect.container for suspect in suspects if suspect.container and suspect.container != "logprob"})
    )
    if containers:
        _split(found, asker, rollout, plan, containers)
    paired = {str(pair.trainer) for pair in found.pairs}
    found.not_compared = [str(tap.site) for tap in natural.manifest.taps if str(tap.site) not in paired]
    found.not_compared += list(natural.manifest.untapped)
    return found


def _late(known: list[Pair], again: list[Pair]) -> list[Pair]:
    """Pairs that show only when what comes before them is put right: a token that went to another expert leaves two
    values that are too far apart to be told as one quantity."""
    ours, theirs = {str(pair.rollout) for pair in known}, {str(pair.trainer) for pair in known}
    return [pair for pair in again if str(pair.trainer) not in theirs and str(pair.rollout) not in ours]


def _differing(pairs: list[Pair], rollout: Taps, forced: Taps) -> list[Suspect]:
    parents = {site.module.rpartition(".")[0] for site in (tap.site for tap in forced.manifest.taps) if site.module}
    suspects = []
    for pair in pairs:
        bits = by_bits(pair, rollout, forced)
        if bits is not None and bits.elements_differing:
            container = container_of(pair.trainer)
            suspects.append(Suspect(pair, bits, container, leaf=bool(container) and container not in parents))
    return suspects


def _split(found: Found, asker: Asker, rollout: Taps, plan: CapturePlan, containers: tuple[str, ...]) -> None:
    """Tap the dispatcher operators inside the containers, pair them by value, force them too, and see what then
    differs."""
    edits = put_right(found.pairs, rollout)
    regions = {suspect.container for suspect in found.suspects if not suspect.leaf}
    operator_plan = plan.model_copy(update={"level": "operator", "modules": containers, "ports": "all", "replay": True})
    # Each operator is run again in one pass: the last. In that one no other values are read than those of the pairs.
    changes: dict[str, object] = {"replay": False} if regions else {"values": tuple(p.trainer for p in found.pairs)}
    asker.job.emit("pass 2", f"operators of the trainer inside {len(containers)} modules")
    taps = asker.score("trainer", "operators", operator_plan.model_copy(update=changes), edits).taps
    if regions:
        inner = [pair for pair in _inner_pairs(taps, rollout, found) if pair.trainer.module in regions]
        inner += _handed_on(taps, rollout, found, inner)
        found.pairs += inner
        asker.job.emit("pass 2", f"the same, run again one by one, with {len(inner)} operators' outputs put right")
        last_plan = operator_plan.model_copy(update={"values": tuple(pair.trainer for pair in found.pairs)})
        taps = asker.score("trainer", "operators-forced", last_plan, edits + put_right(inner, rollout)).taps
        found.compared += len(inner)
        found.suspects = _differing(found.pairs, rollout, taps)
    found.operators = taps
    _describe(found, taps)


def _inner_pairs(operators: Taps, rollout: Taps, found: Found) -> list[Pair]:
    """Operator outputs that hold a quantity of the rollout which no module of the trainer holds; the earliest of
    each."""
    used = {str(pair.rollout) for pair in found.pairs}
    earliest: dict[str, Pair] = {}
    for pair in pair_taps(rollout, operators, []):
        key = str(pair.rollout)
        if pair.by == "value" and pair.trainer.op and key not in used:
            earliest.setdefault(key, pair)
    return list(earliest.values())


def _handed_on(operators: Taps, rollout: Taps, found: Found, known: list[Pair]) -> list[Pair]:
    """What a region hands to its attention, where the values are too far apart to be told as one quantity: a rotary
    that is wrong by more than rounding turns a vector and keeps its length. Proposed by place, shown by the lengths."""
    paired = [*found.pairs, *known]
    used = {str(pair.rollout) for pair in paired}
    placed = {str(pair.trainer) for pair in paired}
    pairs = []
    for suspect in found.suspects:
        if suspect.leaf:
            continue
        module = producer(rollout, suspect.pair.rollout).module
        given = [tap for tap in rollout.rowed if tap.site.module == module and tap.site.port.startswith("in")]
        taken = [
            producer(operators, tap.site)
            for tap in operators.rowed
            if tap.site.module == suspect.container and tap.site.port.startswith("in")
            and kind_of([tap.site.op]) == "attention"
        ]  # fmt: skip
        for tap in given:
            if used & {str(tap.site), str(producer(rollout, tap.site))}:
                continue
            proposed = [
                _as_place(tap.site, site)
                for site in dict.fromkeys(taken)
                if site.port.startswith("out") and str(site) not in placed
            ]
            near = [(turned(pair, rollout, operators), pair) for pair in proposed]
            best = max(near, key=lambda one: one[0], default=None)
            if best is not None and best[0] > 0:
                used.add(str(tap.site))
                placed.add(str(best[1].trainer))
                pairs.append(best[1])
    return pairs


def _as_place(ours: Site, theirs: Site) -> Pair:
    return Pair(rollout=ours, trainer=theirs, columns=None, wider="neither", by="place")


SAME_LENGTH = 0.05
"""Relative difference of the lengths of two rows that one rotation apart may have in 16 bits."""


def turned(pair: Pair, rollout: Taps, trainer: Taps) -> float:
    """Cosine between two sets of rows of equal lengths; 0 where they are none."""
    values = sliced(pair, rollout, trainer)
    if values is None or not values.rollout_RC.is_floating_point():
        return 0.0
    return of_one_length(values.rollout_RC, values.trainer_RC)


def of_one_length(a_RC: torch.Tensor, b_RC: torch.Tensor) -> float:
    """Cosine between two sets of rows; 0 where the lengths of some row are not equal."""
    a_RC, b_RC = a_RC.double(), b_RC.double()
    a_R, b_R = a_RC.norm(dim=1), b_RC.norm(dim=1)
    if not bool(((a_R - b_R).abs() <= SAME_LENGTH * a_R).all()):
        return 0.0
    return float((a_RC * b_RC).sum() / (a_R * b_R).sum().clamp(min=1e-30))


def _describe(found: Found, taps: Taps) -> None:
    """Give each suspect the operators that ran for it, and the paired sites they start from."""
    order = {str(tap.site): tap.order for tap in taps.manifest.taps}
    paired = [(order[str(pair.trainer)], pair) for pair in found.pairs]
    for suspect in found.suspects:
        end = order[str(suspect.pair.trainer)]
        inside = [
            tap
            for tap in taps.manifest.taps
            if tap.site.op and tap.site.module == suspect.container and tap.order <= end
        ]
        start = max((place for place, pair in paired if place < end and _splits(pair, suspect)), default=-1)
        suspect.operators = tuple(dict.fromkeys(tap.site.op for tap in inside if tap.order > start))
        suspect.inputs = tuple(pair for place, pair in paired if place < end and _feeds(pair, suspect))
    found.suspects.sort(key=lambda suspect: order[str(suspect.pair.trainer)])


def _feeds(pair: Pair, suspect: Suspect) -> bool:
    """A paired site from which the suspect's container takes a value: its own inputs, its children's outputs, its
    operators."""
    site, container = pair.trainer, suspect.container
    if site.module == container:
        return site.port.startswith("in") or bool(site.op)
    return site.port.startswith("out") and site.module.rpartition(".")[0] == container


def _splits(pair: Pair, suspect: Suspect) -> bool:
    return bool(pair.trainer.op) and pair.trainer.module == suspect.container
