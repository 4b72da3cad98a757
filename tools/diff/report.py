"""From suspects and their chain of proofs to the Divergence artifact and the table a person reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.tools.align.taps import producer
from samebits.tools.diff.chain import END, around, effect
from samebits.tools.diff.explain import pattern_of
from samebits.tools.schema.artifacts.divergence import Proof, WorkItem

if TYPE_CHECKING:
    import torch

    from samebits.tools.align.taps import Taps
    from samebits.tools.diff.chain import Link
    from samebits.tools.diff.find import Found, Suspect
    from samebits.tools.schema.artifacts.divergence import Cause
    from samebits.tools.schema.results import Cell


def items(
    found: Found,
    links: dict[int, Link],
    causes: list[Cause],
    valid_N: torch.Tensor,
    rollout: Taps,
    rollout_operators: Taps | None,
) -> list[WorkItem]:
    """One WorkItem per suspect, in execution order."""
    made: list[WorkItem] = []
    seen: dict[tuple[str, str], int] = {}
    for index, suspect in enumerate(found.suspects):
        pattern = pattern_of(suspect)
        ours = producer(rollout, suspect.pair.rollout)
        before, after, together = around(links, index)
        made.append(
            WorkItem(
                index=index,
                kind=suspect.kind,
                rollout=(ours,),
                trainer=(suspect.pair.trainer,),
                between=between(suspect),
                inputs=suspect.inputs,
                bits=suspect.bits,
                proof=proof(found, suspect, before, after, _replayed(rollout_operators, ours.module), together),
                cause=causes[index],
                effect=effect(before, after, valid_N),
                same_as=seen.get(pattern),
            )
        )
        seen.setdefault(pattern, index)
    return made


def between(suspect: Suspect) -> str:
    """The operator by name when it is one module or one operator, else the region it is in."""
    site = suspect.pair.trainer
    if suspect.leaf and not site.op:
        return site.module
    starts = ", ".join(str(pair.trainer) for pair in suspect.inputs[-3:])
    return f"between {starts or 'the start of ' + suspect.container} and {site}"


def proof(
    found: Found, suspect: Suspect, before: Link, after: Link, rollout_replay: bool | None, together: int
) -> Proof:
    """Step 5 of docs/how-a-difference-is-found.md."""
    notes = []
    if together > 1:
        notes.append(f"put right together with {together - 1} others: the effect is of all of them")
    if after.order <= before.order and after.first != END:
        notes.append(f"with its output put right the first difference did not move on from {before.first}")
    return Proof(
        rollout_replay=rollout_replay,
        trainer_replay=_replayed(found.operators, suspect.container),
        equal_until=after.first,
        returns=before.order <= after.order and before.first != END,
        notes=tuple(notes),
    )


def _replayed(taps: Taps | None, module: str) -> bool | None:
    """Whether what a module runs, run again on its recorded inputs, gave its recorded output; None: nothing was run
    again.

    Its operators speak for it where they could be run; a container that holds edits cannot be replayed as a whole.
    """
    own = (
        [
            replay
            for replay in taps.manifest.replays
            if replay.site.module == module and replay.calls and not replay.reason.startswith("not run")
        ]
        if taps
        else []
    )
    told = [replay.equal for replay in own if replay.site.op] or [replay.equal for replay in own]
    return all(told) if told else None


def rows(work: list[WorkItem], cut: list[int]) -> tuple[dict[str, Cell], ...]:
    """The work list as a table; `cut` are the operators whose inputs were kept, so that minimize can take them."""
    return tuple(
        {
            "#": item.index,
            "kind": item.kind,
            "where": item.between if len(item.between) < 60 else str(item.trainer[0]),
            "rollout": str(item.rollout[0]),
            "differing": f"{item.bits.elements_differing}/{item.bits.elements}",
            "max ulps": item.bits.max_ulps,
            "cause": item.cause.name,
            "effect max": item.effect.max,
            "then": item.proof.equal_until,
            "minimize": "yes" if item.index in cut else "no",
        }
        for item in work
    )
