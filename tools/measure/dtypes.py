"""Do both sides compute in one dtype? What the opened sides say counts: a python: side may pass over its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from samebits.tools.align.taps import Taps
    from samebits.tools.schema.experiment import Experiment
    from samebits.tools.schema.passes import Done

NEXT = "give both sides one dtype (trainer.dtype, rollout.dtype)"


def apart(rollout: Done | None, trainer: Done | None) -> str:
    """The dtypes of both sides in words, where no dtype is common to their weights; "": one is, or a side says none."""
    ours, theirs = (str(done.facts.get("dtype") or "") if done is not None else "" for done in (rollout, trainer))
    if not ours or not theirs or set(ours.split(", ")) & set(theirs.split(", ")):
        return ""
    return f"rollout {ours}, trainer {theirs}"


def check_opened(experiment: Experiment, rollout: Done | None, trainer: Done | None) -> None:
    """Before the first pass: as configured and as opened in two dtypes. (Weights alone do not tell: under autocast they
    are float32 and the activations are not.)

    Raises:
        UserError: no operator could be named.
    """
    words = apart(rollout, trainer)
    if words and experiment.rollout.dtype != experiment.trainer.dtype:
        raise refusal(words)


def check_captured(rollout: Taps, trainer: Taps) -> None:
    """After the first pass: what the modules gave.

    Raises:
        UserError: no dtype is common to the outputs of both sides (logprobs are float32 on every side).
    """
    ours, theirs = (
        {tap.dtype for tap in taps.rowed if tap.site.port.startswith("out") and tap.site.module != "logprob"}
        for taps in (rollout, trainer)
    )
    if ours and theirs and not ours & theirs:
        raise refusal(f"rollout {', '.join(sorted(ours))}, trainer {', '.join(sorted(theirs))}")


def refusal(words: str) -> UserError:
    """The error of a diff of two dtypes."""
    return UserError(
        f"sides of two dtypes ({words})",
        "no tensor of the two sides can have equal bits, so no operator can be named",
        f"{NEXT}; `samebits measure` tells the gap of the two as they are",
    )
