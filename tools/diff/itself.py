"""The rollout side against itself: the same tokens computed another way, localised by digests, the trigger switched."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from samebits.tools.diff.asking import Asker
from samebits.tools.diff.kinds import kind_of
from samebits.tools.diff.rows import by_bits, by_digest
from samebits.tools.diff.triggers import for_kind
from samebits.tools.job.job import device_of
from samebits.tools.job.rollouts import obtain
from samebits.tools.measure.gap import stats
from samebits.tools.schema.artifacts.divergence import (
    Cause,
    Diverged,
    DivergenceManifest,
    Identical,
    Incomparable,
    Pair,
    Proof,
    WorkItem,
)
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.passes import How
from samebits.tools.schema.results import Result
from samebits.tools.schema.sites import CapturePlan
from samebits.tools.sides import rollout_store
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from pathlib import Path

    from samebits.tools.align.taps import Taps
    from samebits.tools.diff.triggers import Trigger
    from samebits.tools.job.job import Job
    from samebits.tools.schema.artifacts.gap import GapStats
    from samebits.tools.schema.requests import DiffRequest

WAYS: dict[str, tuple[How, str]] = {
    "batch": (How(concurrency=1), "each sequence alone"),
    "decode_prefill": (How(path="prefill"), "each token sampled after a prefill of all before it"),
    "chunked_prefill": (How(chunk=64), "prefills cut into chunks of 64 tokens"),
    "prefix_hit": (How(warm_prefix=True), "prompts taken from the prefix cache"),
}


def diff_itself(request: DiffRequest, job: Job) -> Result:
    """Localise the first operator whose inputs are equal and output is not, between the plain way and another."""
    how, words = WAYS[request.against]
    with ExitStack() as stack:
        engine = stack.enter_context(job.open_side("rollout", request.experiment))
        rollout = obtain(request.rollout, request.experiment, engine, job)
        asker = Asker(job, rollout, {"rollout": engine})
        data = rollout_store.read(rollout)
        if not bool(data.valid_N.any()):
            raise UserError("the rollout", "no valid token", "check its mask")
        plain = asker.score("rollout", "plain", CapturePlan())
        other = asker.score("rollout", request.against, CapturePlan(), how=how)
        gap = stats(plain.logprob_N, other.logprob_N, data.valid_N & other.scored_N)
        taps = (plain.taps, other.taps)
        shared = _shared(*taps)
        if gap.exact:
            return _finish(job, rollout, asker, Identical(compared=len(shared)), [], gap, gap, f"{words}: {gap.tokens} logprobs equal to the bit")
        first = _first(shared, *taps)
        if first is None:
            reason = "no module has equal inputs and another output: the difference is in what was not tapped"
            return _finish(job, rollout, asker, Incomparable(reason=reason), [], gap, gap, f"{words}: {gap.nonzero} logprobs differ, {reason}")
        item = _item(asker, first, how, gap)
    cause, rest = _switch(request, job, rollout, item.kind, how, gap)
    item = item.model_copy(update={"cause": cause})
    summary = f"{words}: {gap.nonzero} of {gap.tokens} logprobs differ (max {gap.max:.3g}); first operator: {item.kind} {item.between}; {cause.why}"
    return _finish(job, rollout, asker, Diverged(first=item), [item], gap, rest, summary)


def _shared(one: Taps, two: Taps) -> list[Pair]:
    """Every rowed site of both captures with itself, in execution order."""
    return [
        Pair(rollout=tap.site, trainer=tap.site, columns=None, wider="neither", by="place") for tap in one.rowed if str(tap.site) in two.numbers
    ]


def _first(shared: list[Pair], one: Taps, two: Taps) -> Pair | None:
    """First module call in execution order with every tapped input equal on all common rows and an output that is not."""
    differing = {str(counted.pair.trainer): counted.differing for counted in by_digest(shared, one, two)}
    for pair in shared:
        site = pair.trainer
        if site.port.startswith("out") and differing.get(str(site)):
            inputs = [name for name in differing if name.startswith(f"{str(site).rpartition(':')[0]}:in")]
            if inputs and not any(differing[name] for name in inputs):
                return pair
    return None


def _item(asker: Asker, first: Pair, how: How, gap: GapStats) -> WorkItem:
    """Store the operators of the module at fault both ways, to see its bits and its kind."""
    module = first.trainer.module
    plan = CapturePlan(level="operator", modules=(module,), store="tensors")
    one = asker.score("rollout", "plain-stored", plan).taps
    two = asker.score("rollout", "other-stored", plan, how=how).taps
    bits = by_bits(first, one, two)
    assert bits is not None, "a stored site can be compared"
    return WorkItem(
        index=0, kind=kind_of(tap.site.op for tap in one.manifest.taps if tap.site.module == module and tap.site.op), rollout=(first.rollout,),
        trainer=(first.trainer,), between=module, inputs=(), bits=bits,
        proof=Proof(rollout_replay=None, trainer_replay=None, equal_until="not asked: one side only", returns=True),
        cause=Cause(name="unknown", why="no trigger was switched"), effect=gap,
    )


def _switch(request: DiffRequest, job: Job, rollout: Path, kind: str, how: How, gap: GapStats) -> tuple[Cause, GapStats]:
    """Run both ways again with each trigger's mechanism taken away; the cause is named only if the difference follows."""
    tried: list[str] = []
    for trigger in for_kind(kind, device_of(request.experiment)):
        if request.experiment.rollout.env.get(trigger.variable) == trigger.off:
            continue
        job.emit("trigger", f"{trigger.variable}={trigger.off}")
        rest = _with(trigger, request, job, rollout, how)
        if rest.exact:
            why = f"with {trigger.variable}={trigger.off} all {rest.tokens} logprobs are equal: {trigger.meaning}"
            return Cause(name="order_batch", why=why, fingerprint=f"{gap.nonzero} of {gap.tokens} tokens"), rest
        tried.append(f"{trigger.variable}={trigger.off} leaves {rest.nonzero}")
    return Cause(name="unknown", why="; ".join(tried) or f"no known trigger acts on {kind} here"), gap


def _with(trigger: Trigger, request: DiffRequest, job: Job, rollout: Path, how: How) -> GapStats:
    data = rollout_store.read(rollout)
    with job.open_side("rollout", request.experiment, env={trigger.variable: trigger.off}) as engine:
        asker = Asker(job, rollout, {"rollout": engine})
        plain = asker.score("rollout", "switched-plain")
        other = asker.score("rollout", "switched-other", how=how)
    return stats(plain.logprob_N, other.logprob_N, data.valid_N & other.scored_N)


def _finish(
    job: Job, rollout: Path, asker: Asker, outcome: Identical | Diverged | Incomparable, work: list[WorkItem], gap: GapStats, rest: GapStats,
    summary: str,
) -> Result:
    from samebits.tools.diff import report

    folder = job.new("divergence")
    compared = outcome.compared if isinstance(outcome, Identical) else 0
    artifact.write(
        folder,
        DivergenceManifest(
            outcome=outcome, work=tuple(work), gap=gap, unexplained=rest, compared=compared, not_compared=(), passes=asker.passes,
            made_from={"rollout": artifact.identity(rollout)},
        ),
    )
    verdict = {"identical": "equal", "diverged": "differs", "incomparable": "unjudged"}[outcome.status]
    return Result.model_validate({
        "verdict": verdict, "summary": summary, "ids": {"divergence": folder.name, "rollout": str(rollout)}, "rows": report.rows(work), "total": len(work),
    })
