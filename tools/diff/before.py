"""What must hold before operators are compared: steps 1 and 2 of docs/how-a-difference-is-found.md."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from samebits.tools.diff import compiled as compiled_engine
from samebits.tools.measure import could_fail
from samebits.tools.measure.answer import figures, said_of
from samebits.tools.measure.causes import Gap, explains, find_causes
from samebits.tools.measure.gap import differs, stats
from samebits.tools.measure.remedies import remedy
from samebits.tools.measure.weights_check import compare_weights
from samebits.tools.schema.passes import Reading
from samebits.tools.sides.scoring.logprob import Processing

if TYPE_CHECKING:
    from pathlib import Path

    from samebits.tools.diff.asking import Answer, Asker
    from samebits.tools.diff.compiled import Compiled
    from samebits.tools.job.sides import Role
    from samebits.tools.schema.artifacts.weights import SideWeights
    from samebits.tools.schema.sites import CapturePlan, Edit
    from samebits.tools.sides.protocol import RolloutData, Scores

REPEAT = "samebits measure --axes repeat"


@dataclass(slots=True, frozen=True)
class Before:
    """What was found, in the order in which it was asked."""

    said: tuple[str, ...]
    stop: bool = False
    """The last thing said forbids to go on: no operator may be named."""
    next: str = ""
    """What to do about it."""
    own: bool = True
    """The rollout side gives the logprobs that the rollout holds."""
    weak: tuple[str, ...] = ()
    """Of `said`: causes of meaning that are present and explain little. With one in place no bits can become equal."""
    compiled: bool = False
    """The rollout side runs compiled and was opened eager: the first thing said."""
    unsteady: Role | None = None
    """The side that gave other logprobs when it was asked again in the same way: nothing can be compared with it."""


def look(
    asker: Asker,
    data: RolloutData,
    digests: tuple[Answer, Answer],
    weights: tuple[SideWeights, SideWeights],
    compiled: Compiled | None = None,
) -> Before:
    """Steps 1 and 2.

    Args:
        digests: pass 1 of the rollout side and of the trainer, captured.
        weights: of the rollout side and of the trainer.
        compiled: the rollout side as it is configured, where it was opened eager for this.
    """
    rollout = captured_rollout(asker, data, digests[0], compiled)
    if rollout.stop:
        return rollout
    trainer = asker.score("trainer", "plain")
    evidence = could_fail.check(
        lambda plan, edits: _asked(asker, plan, edits), "trainer", data, trainer.scores, _as_scores(digests[1])
    )
    said = (*rollout.said, evidence.text)
    if not evidence.sound:
        return Before(said, stop=True, next=REPEAT, unsteady="trainer" if evidence.unsteady else None)
    same = compare_weights(*weights)
    said = (*said, f"weights {same.text}")
    if same.equal is False:
        return Before(said, stop=True, next="make the weights of both sides equal (same folder, same version)")
    own = Processing.of(data)
    processed = Reading(temperature=own.temperature, top_p=own.top_p, top_k=own.top_k)
    causes = find_causes(Gap(data, trainer.logprob_N, asker.readings, processed))
    if causes and explains(causes[0]):
        return Before((*said, said_of(causes[0])), stop=True, next=remedy(causes[0].cause), own=rollout.own)
    weak = tuple(said_of(cause) for cause in causes)
    said = (*said, *(weak or ("no cause of data or meaning fits",)))
    return replace(rollout, said=said, weak=weak)


def captured_rollout(asker: Asker, data: RolloutData, captured: Answer, compiled: Compiled | None = None) -> Before:
    """The captured run of the rollout side must give the logprobs of the run without capture. The rollout holds those;
    where they differ, passes without capture tell whether it is the capture, the side, or another rollout (that of the
    compiled engine, where the side was opened eager)."""
    both_N = data.valid_N & captured.scored_N
    held = stats(data.logprob_N, captured.logprob_N, both_N)
    first, equal = ((), True) if compiled is None else _opened_eager(compiled, data, captured)
    eager = compiled is not None
    if not held.nonzero:
        text = f"the captured rollout side gives all {held.tokens} logprobs that the rollout holds"
        return Before((*first, text), compiled=eager, next="" if equal else compiled_engine.NEXT)
    plain = asker.score("rollout", "plain")
    moved = int((differs(plain.logprob_N, captured.logprob_N) & both_N).sum())
    if not moved and eager:
        return Before(first, own=False, compiled=True, next="" if equal else compiled_engine.NEXT)
    if not moved:
        return Before(
            (
                f"the rollout side, asked for the same tokens again, does not give the logprobs that the rollout "
                f"holds: {figures(held)}. Another process, batch or setting made them; what follows is about the side "
                f"as it is now",
            ),
            own=False,
        )
    again = asker.score("rollout", "plain")
    changes = int((differs(plain.logprob_N, again.logprob_N) & both_N).sum())
    if changes:
        text = (
            f"the rollout side is not equal to itself: the same call twice changes {changes} of {held.tokens} logprobs"
        )
    else:
        text = (
            f"capture itself changes {moved} of {held.tokens} logprobs of the rollout side, so no capture of it can be "
            f"trusted"
        )
    unsteady: Role | None = "rollout" if changes else None
    return Before((*first, text), stop=True, next=REPEAT, own=False, unsteady=unsteady, compiled=eager)


def _opened_eager(compiled: Compiled, data: RolloutData, captured: Answer) -> tuple[tuple[str, ...], bool]:
    text, equal = compiled_engine.said(compiled, data, captured)
    return (text,), equal


def _asked(asker: Asker, plan: CapturePlan | None, edits: tuple[Edit, ...]) -> tuple[Scores, Path]:
    return _as_scores(asker.score("trainer", "ulp", plan, edits))


def _as_scores(answer: Answer) -> tuple[Scores, Path]:
    return answer.scores, answer.folder
