"""`samebits diff`: names, proves and orders every operator that differs by itself.

Steps 4 to 6 of docs/how-a-difference-is-found.md.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.tools.align.taps import producer
from samebits.tools.align.weights import anchors
from samebits.tools.diff import before, compiled, explain, report, selection, within
from samebits.tools.diff.asking import Asker
from samebits.tools.diff.chain import walk
from samebits.tools.diff.find import Found, find
from samebits.tools.diff.itself import diff_itself
from samebits.tools.diff.rows import by_digest
from samebits.tools.job.job import device_of, runs_compiled
from samebits.tools.job.rollouts import obtain
from samebits.tools.measure import dtypes
from samebits.tools.measure.gap import stats
from samebits.tools.measure.workload_check import check_dtypes, check_request
from samebits.tools.repro import evidence
from samebits.tools.schema.artifacts.divergence import (
    AlignmentManifest,
    Diverged,
    DivergenceManifest,
    Identical,
    Incomparable,
    Pair,
)
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.results import Result
from samebits.tools.schema.sites import CapturePlan
from samebits.tools.sides import rollout_store
from samebits.tools.store import artifact
from samebits.tools.store.fingerprint import environment

if TYPE_CHECKING:
    import torch

    from samebits.tools.align.taps import Taps
    from samebits.tools.align.weights import Anchor
    from samebits.tools.diff.asking import Answer
    from samebits.tools.diff.before import Before
    from samebits.tools.diff.compiled import Compiled
    from samebits.tools.diff.explain import Explained
    from samebits.tools.job.job import Job
    from samebits.tools.job.sides import Role
    from samebits.tools.schema.artifacts.gap import GapStats
    from samebits.tools.schema.requests import DiffRequest
    from samebits.tools.sides.protocol import RolloutData

SHOWN = 40
OPERATOR_SHARE = 5
"""A capture of every operator inside the modules at fault takes up to this many times what the module ports take."""


def run_diff(request: DiffRequest, job: Job) -> Result:
    """Carry out a diff.

    Raises:
        UserError: see the sides; a workload that cannot run here; a rollout of another model.
    """
    experiment = request.experiment
    check_request(experiment, request.rollout)
    if request.against != "trainer":
        return diff_itself(request, job)
    check_dtypes(experiment)
    with ExitStack() as stack:
        job.prepare("trainer", experiment)
        seen = None
        if runs_compiled(experiment):
            seen = compiled.ask(request, job)
            request = compiled.eager(request, seen.rollout)
            experiment = request.experiment
        engine = stack.enter_context(job.open_side("rollout", experiment))
        rollout = obtain(request.rollout, experiment, lambda: engine, job).folder
        trainer = stack.enter_context(job.open_side("trainer", experiment))
        dtypes.check_opened(experiment, engine.opened, trainer.opened)
        asker = Asker(job, rollout, {"rollout": engine, "trainer": trainer})
        return _diff(request, job, asker, seen)


def _diff(request: DiffRequest, job: Job, asker: Asker, configured: Compiled | None) -> Result:
    data = rollout_store.read(asker.rollout)
    job.emit("pass 1", "row digests of every module on both sides", 0, 2)
    first_r = asker.score("rollout", "digest", CapturePlan())
    job.emit("pass 1", "row digests of every module on both sides", 1, 2)
    first_t = asker.score("trainer", "digest", CapturePlan())
    _judgeable(data, first_r.logprob_N)
    dtypes.check_captured(first_r.taps, first_t.taps)
    gap = stats(first_r.logprob_N, first_t.logprob_N, data.valid_N)
    weights = asker.weights("rollout"), asker.weights("trainer")
    job.emit("data", "could the check fail? is it data or meaning?")
    seen = before.look(asker, data, (first_r, first_t), weights, configured)
    found_anchors = anchors(*weights)
    layers = _layers(found_anchors, first_r.taps, first_t.taps)
    if seen.unsteady is not None:
        return _not_itself(job, asker, data, seen.unsteady, seen, layers)
    if not (seen.stop or gap.exact):
        return _localise(request, job, asker, data, found_anchors, layers, (first_r, first_t), seen)
    outcome, summary = _unlocalised(seen, gap, len(layers))
    return _finish(job, asker, _unproven(asker, outcome, gap, seen, layers), summary, next_step=seen.next)


def _unproven(
    asker: Asker,
    outcome: Identical | Diverged | Incomparable,
    gap: GapStats,
    seen: Before,
    layers: tuple[tuple[str, int, int], ...],
) -> DivergenceManifest:
    """Where no work list was proved: the whole gap stays unexplained."""
    return DivergenceManifest(
        outcome=outcome,
        work=(outcome.first,) if isinstance(outcome, Diverged) else (),
        gap=gap,
        unexplained=gap,
        compared=len(layers),
        not_compared=(),
        passes=asker.passes,
        before=seen.said,
        layers=layers,
    )


def _not_itself(
    job: Job, asker: Asker, data: RolloutData, role: Role, seen: Before, layers: tuple[tuple[str, int, int], ...]
) -> Result:
    """A side gives other logprobs each time: which of its operators, and why. The other side is not asked."""
    job.emit("itself", f"looking for the operator of the {role} side that is not equal to itself")
    item, gap = within.not_itself(asker, role, data)
    said = f"{_capital(seen.said[-1])}. "
    if item is None:
        reason = (
            "no module had equal inputs and another output in two captures: the difference is in what is not tapped"
        )
        outcome: Diverged | Incomparable = Incomparable(reason=f"{seen.said[-1]}; {reason}")
        said += f"{_capital(reason)}."
    else:
        outcome = Diverged(first=item)
        said += f"First at fault: {item.kind} {item.between}, {item.cause.name}: {item.cause.why}."
    manifest = _unproven(asker, outcome, gap, seen, layers)
    following = f"replace {item.between} on the {role} side, then samebits diff again" if item else seen.next
    return _finish(job, asker, manifest, f"{said} The sides were not compared.", next_step=following)


def _unlocalised(seen: Before, gap: GapStats, compared: int) -> tuple[Identical | Incomparable, str]:
    """The outcome, and the sentence, where no operator is looked for."""
    if seen.stop:
        return Incomparable(reason=seen.said[-1]), f"{_capital(seen.said[-1])}. No operator was looked for."
    equal = f"every one of {gap.tokens} logprobs is equal to the bit; {compared} paired modules compared"
    if not seen.own:
        opened = "the engine opened eager" if seen.compiled else "the rollout side as it is now"
        return Incomparable(reason=seen.said[0]), f"{_capital(seen.said[0])}. The trainer against {opened}: {equal}."
    if not compared:
        return Incomparable(reason="no module of the two sides could be paired"), equal
    return Identical(compared=compared), f"{_capital(seen.said[0])}: {equal}" if seen.compiled else equal


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".")


def _judgeable(data: RolloutData, again_N: torch.Tensor) -> None:
    """There must be valid tokens, and finite logprobs from the engine under capture."""
    if data.valid_N.sum() == 0:
        raise UserError("the rollout", "no valid token", "check its mask")
    if not again_N.isfinite().all():
        raise UserError(
            "the rollout side", "logprobs that are not finite", "run `samebits measure` and look at the worst tokens"
        )


def _layers(found: list[Anchor], rollout: Taps, trainer: Taps) -> tuple[tuple[str, int, int], ...]:
    """Rows compared and differing by module, from digests alone, in the trainer's execution order."""
    from samebits.tools.schema.sites import Site

    pairs = [
        Pair(
            rollout=Site(module=a.rollout, port="out0"),
            trainer=Site(module=a.trainer, port="out0"),
            columns=None,
            wider="neither",
            by="weights",
        )
        for a in found
        if a.rollout_total == a.trainer_total
    ]
    counted = by_digest(pairs, rollout, trainer)
    counted.sort(key=lambda entry: trainer.tap(str(entry.pair.trainer)).order)
    return tuple((entry.pair.trainer.module, entry.rows, entry.differing) for entry in counted)


def _localise(
    request: DiffRequest,
    job: Job,
    asker: Asker,
    data: RolloutData,
    found_anchors: list[Anchor],
    layers: tuple[tuple[str, int, int], ...],
    digests: tuple[Answer, Answer],
    seen: Before,
) -> Result:
    budget = request.experiment.capture.budget_mib << 20
    row_bytes = selection.bytes_per_row(*(answer.taps for answer in digests))
    differing_N = digests[0].logprob_N != digests[1].logprob_N
    chosen = selection.choose(data, differing_N, row_bytes, budget // OPERATOR_SHARE)
    plan = CapturePlan(store="tensors", sequences=chosen, budget_bytes=budget)
    valid_N = data.valid_N & selection.tokens_of(data, chosen)
    job.emit("pass 2", f"tensors of {len(chosen)} sequences on both sides: the rollout side's")
    stored = asker.score("rollout", "stored", plan)
    found = find(asker, stored.taps, found_anchors, plan)
    operators_r = _rollout_operators(asker, found, stored.taps, plan) if found.suspects else None
    links = walk(asker, stored.taps, found, plan, stored.logprob_N, valid_N, request.max_operators)
    explained = explain.causes(
        found, stored.taps, request.experiment.trainer_model, data, device_of(request.experiment), job.emit
    )
    job.emit("report", f"{len(found.suspects)} operators, their proofs and causes")
    explained = within.with_shown(explained, found, stored.taps, operators_r)
    work = report.items(found, links, [one.cause for one in explained], valid_N, stored.taps, operators_r)
    _write_alignment(job, found, stored.taps)
    if not work:
        outcome: Diverged | Incomparable = Incomparable(
            reason="the logprobs differ, yet no paired site differs by itself: see not_compared"
        )
    else:
        outcome = Diverged(first=work[0])
    manifest = DivergenceManifest(
        outcome=outcome,
        work=tuple(work),
        gap=links[0].gap,
        unexplained=links[len(work)].gap,
        compared=found.compared,
        not_compared=tuple(found.not_compared),
        passes=asker.passes,
        before=seen.said,
        layers=layers,
    )
    first = "" if seen.own and not seen.compiled else f"{_capital(seen.said[0])}. "
    weak = "".join(f" {text}" for text in seen.weak)
    sentence = first + _sentence(manifest, len(chosen), len(data.sequences)) + weak
    return _finish(job, asker, manifest, sentence, explained)


def _rollout_operators(asker: Asker, found: Found, rollout: Taps, plan: CapturePlan) -> Taps:
    """The rollout's operators inside the modules of the work list, each run again on its own inputs (proof (a))."""
    sites = [producer(rollout, suspect.pair.rollout) for suspect in found.suspects]
    modules = tuple(sorted({site.module for site in sites if site.module not in ("", "logprob")}))
    asker.job.emit("pass 2", f"running {len(modules)} modules of the rollout side again, operator by operator")
    # What the replays say is all that is asked of it.
    changes = {"level": "operator", "modules": modules, "replay": True, "store": "digest", "sites": ()}
    return asker.score("rollout", "operators", plan.model_copy(update=changes)).taps


def _write_alignment(job: Job, found: Found, rollout: Taps) -> None:
    ours = {str(pair.rollout) for pair in found.pairs}
    theirs = {str(pair.trainer) for pair in found.pairs}
    artifact.write(
        job.new("alignment"),
        AlignmentManifest(
            pairs=tuple(found.pairs),
            unpaired_rollout=tuple(str(tap.site) for tap in rollout.manifest.taps if str(tap.site) not in ours),
            unpaired_trainer=tuple(str(tap.site) for tap in found.natural.manifest.taps if str(tap.site) not in theirs),
        ),
    )


def _sentence(manifest: DivergenceManifest, chosen: int, sequences: int) -> str:
    gap, rest = manifest.gap, manifest.unexplained
    size = f"max {gap.max:.3g}, k3 {gap.k3:.3g}"
    start = f"{gap.nonzero} of {gap.tokens} logprobs differ ({size}) over {chosen} of {sequences} sequences. "
    if not manifest.work:
        return start + "No operator could be named."
    first = manifest.work[0]
    listed = f"{len(manifest.work)} operators differ by themselves, the first is {first.kind} {first.between}. "
    left = (
        "With all of them put right every logprob is equal to the bit."
        if rest.exact
        else f"Unexplained after all are put right: {rest.nonzero} tokens, max {rest.max:.3g}."
    )
    blind = f" {len(manifest.not_compared)} sites have no partner (not_compared in the artifact)."
    return start + listed + left + (blind if manifest.not_compared else "")


def _finish(
    job: Job,
    asker: Asker,
    manifest: DivergenceManifest,
    summary: str,
    explained: list[Explained] | None = None,
    next_step: str = "",
) -> Result:
    folder = job.new("divergence")
    manifest = manifest.model_copy(
        update={"made_from": {"rollout": artifact.identity(asker.rollout)}, "environment": environment()}
    )
    kept = {evidence.names(number): one.evidence for number, one in enumerate(explained or []) if one.evidence}
    texts = {text: content for (text, _), (content, _) in kept.items()}
    artifact.write(folder, manifest, {data: tensors for (_, data), (_, tensors) in kept.items()}, texts)
    cut = [number for number, one in enumerate(explained or []) if one.evidence]
    table = report.rows(list(manifest.work), cut)
    if cut:
        next_step = f"samebits minimize {folder} --operator {cut[0]}"
    elif manifest.work and not next_step:
        next_step = "none of these operators can be cut out yet: their causes say what is missing"
    verdict = {"identical": "equal", "diverged": "differs", "incomparable": "unjudged"}[manifest.outcome.status]
    ids = {"divergence": folder.name, "rollout": str(Path(asker.rollout))}
    return Result.model_validate(
        {
            "verdict": verdict,
            "summary": summary,
            "ids": ids,
            "rows": table[:SHOWN],
            "truncated": len(table) > SHOWN,
            "total": len(table),
            "next": next_step,
        }
    )
