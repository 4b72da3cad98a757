"""One side against itself: the first module whose inputs are equal both times and whose output is not, and what that
module shows when it is run alone."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from samebits.tools.align.taps import producer
from samebits.tools.diff.asking import PLAIN
from samebits.tools.diff.kinds import kind_of
from samebits.tools.diff.rows import by_bits, by_digest
from samebits.tools.measure.gap import differs, stats
from samebits.tools.schema.artifacts.divergence import Cause, Pair, Proof, WorkItem
from samebits.tools.schema.sites import CapturePlan

if TYPE_CHECKING:
    import torch

    from samebits.tools.align.taps import Taps
    from samebits.tools.diff.asking import Asker
    from samebits.tools.diff.explain import Explained
    from samebits.tools.diff.find import Found
    from samebits.tools.schema.artifacts.capture import Replay
    from samebits.tools.schema.artifacts.divergence import Bits
    from samebits.tools.schema.artifacts.gap import GapStats
    from samebits.tools.schema.passes import How
    from samebits.tools.sides.protocol import RolloutData

LOOKED_AT = 4
"""Sequences whose activations are compared."""
TRIES = 3
"""Times two captures are made until they differ."""


def chosen(data: RolloutData, differing_N: torch.Tensor) -> tuple[int, ...]:
    """A few sequences that differ, the longest among them: what their rows show is what is looked for."""
    parts = differing_N.split([len(sequence.sampled) for sequence in data.sequences])
    found = [i for i, part in enumerate(parts) if bool(part.any())]
    return tuple(sorted(sorted(found, key=lambda i: -len(data.sequences[i].tokens))[:LOOKED_AT]))


def last_tokens(data: RolloutData, differing_N: torch.Tensor, sequences: tuple[int, ...]) -> tuple[int, ...]:
    """The last differing token of each of these sequences. Where each token has a prefill of its own, a row lies in
    many; in that of one token it is what led to that token."""
    parts = differing_N.split([len(sequence.sampled) for sequence in data.sequences])
    starts = [0, *itertools.accumulate(len(sequence.sampled) for sequence in data.sequences)]
    return tuple(starts[i] + int(parts[i].nonzero()[-1]) for i in sequences)


def shared(one: Taps, two: Taps) -> list[Pair]:
    """Every rowed site of both captures with itself, in execution order."""
    return [
        Pair(rollout=tap.site, trainer=tap.site, columns=None, wider="neither", by="place")
        for tap in one.rowed
        if str(tap.site) in two.numbers
    ]


def first(one: Taps, two: Taps) -> Pair | None:
    """First module call in execution order with every tapped input equal on all common rows and an output that is
    not."""
    pairs = shared(one, two)
    differing = {str(counted.pair.trainer): counted.differing for counted in by_digest(pairs, one, two)}
    for pair in pairs:
        site = pair.trainer
        if site.port.startswith("out") and differing.get(str(site)):
            inputs = [name for name in differing if name.startswith(f"{str(site).rpartition(':')[0]}:in")]
            if inputs and not any(differing[name] for name in inputs):
                return pair
    return None


def item(asker: Asker, role: str, pair: Pair, how: How, gap: GapStats, index: int, plan: CapturePlan) -> WorkItem:
    """Store the operators of the module at fault both ways, to see its bits and its kind, and run it alone."""
    module = pair.trainer.module
    plan = plan.model_copy(update={"level": "operator", "modules": (module,), "store": "tensors", "replay": True})
    one = asker.score(role, "plain-stored", plan).taps
    two = asker.score(role, "other-stored", plan, how=how).taps
    bits = by_bits(pair, one, two)
    assert bits is not None, "a stored site can be compared"
    seen = shown(one, module) or shown(two, module)
    cause = Cause(name="unknown", why="run alone on its inputs it showed nothing")
    if seen is not None:
        cause = Cause.model_validate({"name": seen.shows, "why": seen.why, "fingerprint": rows_of(bits)})
    return WorkItem(
        index=index,
        kind=kind_of(tap.site.op for tap in one.manifest.taps if tap.site.module == module and tap.site.op),
        rollout=(pair.rollout,),
        trainer=(pair.trainer,),
        between=module,
        inputs=(),
        bits=bits,
        proof=Proof(rollout_replay=None, trainer_replay=None, equal_until="not asked: one side only", returns=True),
        cause=cause,
        effect=gap,
    )


def rows_of(bits: Bits) -> str:
    """Fingerprint of a comparison by rows."""
    return f"{bits.rows_differing} of {bits.rows} rows"


def not_itself(asker: Asker, role: str, data: RolloutData) -> tuple[WorkItem | None, GapStats]:
    """Where a side that gives other logprobs each time goes apart, and how far the last two runs were.

    Captures are made in pairs until the two differ at a module: a race may spare some.
    """
    for _ in range(TRIES):
        one, two = (asker.score(role, "again", CapturePlan()) for _ in range(2))
        valid_N = data.valid_N & one.scored_N & two.scored_N
        gap = stats(one.logprob_N, two.logprob_N, valid_N)
        found = first(one.taps, two.taps)
        if found is not None:
            sequences = chosen(data, differs(one.logprob_N, two.logprob_N) & valid_N)
            plan = CapturePlan(sequences=sequences or tuple(range(min(LOOKED_AT, len(data.sequences)))))
            return item(asker, role, found, PLAIN, gap, 0, plan), gap
    return None, gap


def shown(taps: Taps | None, module: str) -> Replay | None:
    """What a module showed when it was run alone; a race before all else."""
    own = [r for r in taps.manifest.replays if r.site.module == module and not r.site.op and r.shows] if taps else []
    return min(own, key=lambda replay: replay.shows != "race", default=None)


def with_shown(explained: list[Explained], found: Found, rollout: Taps, operators: Taps | None) -> list[Explained]:
    """Causes that a module showed when it was run alone: a race stands before everything, state where nothing else is
    known. What is no proof of the difference between the sides is only added to the words.

    Args:
        rollout: the rollout's stored module outputs.
        operators: the rollout's capture with replays; the trainer's is in `found`.
    """
    out = []
    for suspect, one in zip(found.suspects, explained, strict=True):
        ours = shown(operators, producer(rollout, suspect.pair.rollout).module)
        theirs = shown(found.operators, suspect.container)
        told = [(side, seen) for side, seen in (("rollout", ours), ("trainer", theirs)) if seen is not None]
        out.append(replace(one, cause=_told(one.cause, told)))
    return out


def _told(cause: Cause, told: list[tuple[str, Replay]]) -> Cause:
    for side, seen in told:
        if seen.shows == "race" or (seen.shows == "state" and cause.name == "unknown"):
            return Cause.model_validate(
                {"name": seen.shows, "why": f"the {side}'s operator: {seen.why}", "fingerprint": cause.fingerprint}
            )
    also = "".join(f" Also shown by the {side}'s operator run alone ({seen.shows}): {seen.why}." for side, seen in told)
    return cause.model_copy(update={"why": cause.why + also})
