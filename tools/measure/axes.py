"""Each side against itself: the same tokens computed in another way. An axis counts only when the facts show it took
effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from samebits.tools.job.sides import score_with
from samebits.tools.measure import gap
from samebits.tools.measure.ways import LACKS, ROLLOUT_PROOFS, Variant, always, company, lacks, path
from samebits.tools.schema.artifacts.gap import Axis, GapStats, NotRun, Same, Varies
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.passes import How

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from samebits.tools.job.sides import Role, Sides
    from samebits.tools.sides.protocol import RolloutData, Scores


ON_REQUEST = ("eager_compiled",)
"""Axes that need a second engine: run only when asked for by name."""
RESCORED = 256
"""Tokens rescored one by one in the prefill path; more are thinned by a stride."""


def names() -> tuple[str, ...]:
    """Every axis there is."""
    return tuple(get_args(Axis.model_fields["name"].annotation))


def chosen(asked: tuple[str, ...] | None) -> tuple[str, ...]:
    """The axes to run.

    Raises:
        UserError: a name that is no axis.
    """
    if asked is None:
        return tuple(name for name in names() if name not in ON_REQUEST)
    wrong = sorted(set(asked) - set(names()))
    if wrong:
        raise UserError(f"axis {wrong[0]!r}", "not known", f"use some of {', '.join(names())}")
    return tuple(name for name in names() if name in asked)


def of(role: Role, asked: tuple[str, ...]) -> list[str]:
    """Those of the asked axes that a role has."""
    return [name for name in asked if name == "repeat" or (name == "micro_batch") == (role == "trainer")]


def variants(role: Role, name: str, data: RolloutData, micro_batch: int) -> list[Variant]:
    """The ways that make up an axis; empty: the role has no such axis."""
    count = int(data.valid_N.numel())
    longest = max((len(sequence.prompt) for sequence in data.sequences), default=0)
    if name == "repeat":
        return [Variant(How(), "the same call twice", "nothing was switched: a race, or state left behind", always)]
    if role == "trainer":
        if name != "micro_batch":
            return []
        sizes = [size for size in (1, 2 * micro_batch) if size != micro_batch]
        return [
            Variant(
                How(concurrency=size),
                f"micro batch {micro_batch} against {size}",
                f"micro batch {size} instead of {micro_batch}",
                company,
            )
            for size in sizes
        ]
    if name == "batch":
        return [
            Variant(How(concurrency=1), "all in flight against each alone", "a batch of one", company),
            Variant(How(concurrency=3), "all in flight against three at a time", "three sequences in flight", company),
        ]
    if name == "decode_prefill":
        stride = max(1, -(-count // RESCORED))
        words = "decode against one prefill per token" + (f" (every {stride}th)" if stride > 1 else "")
        return [Variant(How(path="prefill", stride=stride), words, "prefill in place of decode", path)]
    if name == "chunked_prefill":
        # The budget is shared by all sequences in flight: one more than decode needs already cuts.
        chunk = max(16, len(data.sequences) + 1, longest // 3)
        return [
            Variant(
                How(chunk=chunk),
                f"whole prefills against a budget of {chunk} tokens a step",
                "chunked prefill",
                ROLLOUT_PROOFS[name],
            )
        ]
    if name == "prefix_hit":
        return [
            Variant(
                How(warm_prefix=True),
                "cold against warm prefix cache",
                "prefix cache hits",
                ROLLOUT_PROOFS[name],
            )
        ]
    return []


def run(sides: Sides, role: Role, name: str, rollout: Path, data: RolloutData, plain: Scores) -> Axis | None:
    """One axis of one side; None: the role has no such axis.

    The first variant that differs decides. "Same" needs every variant that took effect to be equal, and at least one.
    """
    if name == "eager_compiled":
        return _engine_axis(sides, rollout, data, plain) if role == "rollout" else None
    if lacks(name, plain):
        return _axis(role, name, 0, NotRun(reason=LACKS), "")
    tried = variants(role, name, data, sides.experiment.trainer.micro_batch)
    reasons, equal, tokens = [], [], 0
    for variant in tried:
        other, _ = sides.score(role, rollout, variant.how)
        why = variant.proof(plain, other)
        if why:
            reasons.append(f"{variant.words}: {why}")
            continue
        both_N = data.valid_N & plain.scored_N & other.scored_N
        tokens = int(both_N.sum())
        found = gap.stats(plain.logprob_N, other.logprob_N, both_N)
        if not found.exact:
            return _axis(role, name, tokens, _judged(found, variant.trigger), variant.words)
        equal.append(variant.words)
    if equal:
        return _axis(role, name, tokens, Same(), "; ".join(equal + [f"not run: {reason}" for reason in reasons]))
    return _axis(role, name, 0, NotRun(reason="; ".join(reasons)), "") if tried else None


def forced_differs(found: GapStats) -> Axis:
    """The repeat axis when the teacher-forced run does not give what the engine reported while generating."""
    trigger = "teacher-forced in place of free sampling, or the same call twice"
    return _axis(
        "rollout",
        "repeat",
        found.tokens,
        Varies(stats=found, trigger=trigger),
        "the generating run against its own tokens forced",
    )


def _judged(found: GapStats, trigger: str) -> Varies | NotRun:
    if found.tokens == 0:
        return NotRun(reason="no valid token was scored in both ways")
    if found.nonzero == 0:
        return NotRun(reason=f"{found.nonfinite} logprobs are not finite: nothing can be said about them")
    return Varies(stats=found, trigger=trigger)


def _axis(role: Role, name: Any, tokens: int, outcome: Same | Varies | NotRun, changed: str) -> Axis:
    return Axis(side=role, name=name, tokens=tokens, outcome=outcome, changed=changed)


def _engine_axis(sides: Sides, rollout: Path, data: RolloutData, plain: Scores) -> Axis:
    """A second engine with `eager` switched; the first one is closed for it."""
    before = sides.session("rollout").opened
    config = sides.experiment.rollout
    words = "compiled against eager" if not config.eager else "eager against compiled"
    if config.side != "vllm":
        return _axis("rollout", "eager_compiled", 0, NotRun(reason=f"side {config.side!r} has no compiled mode"), "")
    sides.close()
    other = sides.experiment.model_copy(update={"rollout": config.model_copy(update={"eager": not config.eager})})
    with sides.job.open_side("rollout", other) as session:
        after = session.opened
        assert before is not None
        assert after is not None
        if before.facts.get("compiled") == after.facts.get("compiled"):
            reason = f"both engines report compilation {after.facts.get('compiled')}"
            return _axis("rollout", "eager_compiled", 0, NotRun(reason=reason), "")
        scores, _ = score_with(session, sides.job, "rollout", rollout, How())
    both_N = data.valid_N & plain.scored_N & scores.scored_N
    found = gap.stats(plain.logprob_N, scores.logprob_N, both_N)
    outcome = Same() if found.exact else _judged(found, f"eager = {str(not config.eager).lower()}")
    return _axis("rollout", "eager_compiled", int(both_N.sum()), outcome, words)
