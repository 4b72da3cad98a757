"""The rollout side against itself: the same tokens computed another way, localised by digests, the trigger switched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from samebits.tools.diff import compiled, report, within
from samebits.tools.diff.asking import Asker
from samebits.tools.diff.rows import by_digest
from samebits.tools.diff.triggers import for_kind, likely
from samebits.tools.job.job import device_of, runs_compiled
from samebits.tools.job.rollouts import obtain
from samebits.tools.measure.answer import figures
from samebits.tools.measure.gap import differs, stats
from samebits.tools.measure.ways import not_taken
from samebits.tools.measure.workload_check import check_request
from samebits.tools.schema.artifacts.divergence import (
    Cause,
    Diverged,
    DivergenceManifest,
    Identical,
    Incomparable,
)
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.passes import How
from samebits.tools.schema.results import Result
from samebits.tools.schema.sites import CapturePlan
from samebits.tools.sides import rollout_store
from samebits.tools.store import artifact
from samebits.tools.store.fingerprint import environment

if TYPE_CHECKING:
    from pathlib import Path

    from samebits.tools.diff.asking import Answer
    from samebits.tools.job.job import Job
    from samebits.tools.schema.artifacts.divergence import Pair, WorkItem
    from samebits.tools.schema.artifacts.gap import GapStats
    from samebits.tools.schema.requests import DiffRequest
    from samebits.tools.sides.protocol import RolloutData

WAYS: dict[str, tuple[How, str]] = {
    "repeat": (How(), "the same call again"),
    "batch": (How(concurrency=1), "each sequence alone"),
    "decode_prefill": (How(path="prefill"), "each token sampled after a prefill of all before it"),
    "chunked_prefill": (How(chunk=64), "prefills cut into chunks of 64 tokens"),
    "prefix_hit": (How(warm_prefix=True), "prompts taken from the prefix cache"),
}
REPEAT = "samebits diff --against repeat"
WAKES = {
    "batch": "give more than one prompt, and a [rollout] side that runs several sequences at once (vllm does)",
    "decode_prefill": "give a [rollout] side with a prefill path of its own (vllm has one)",
    "chunked_prefill": "give longer prompts ([workload] prompt_tokens), and a [rollout] side that cuts prefills (vllm "
    "does)",
    "prefix_hit": "give longer prompts ([workload] prompt_tokens), and a [rollout] side with a prefix cache (vllm has "
    "one)",
}
"""What to change where a way took no effect."""


def diff_itself(request: DiffRequest, job: Job) -> Result:
    """Localise every operator whose inputs are equal and output is not, between the plain way and another.

    Where a known trigger takes the difference of an operator away, the search goes on with that trigger off, until the
    two ways agree or nothing more can be named.
    """
    how, words = WAYS[request.against]
    check_request(request.experiment, request.rollout)
    if runs_compiled(request.experiment):
        return _compiled(request, job, how, words)
    search, look, gap = _searched(request, job, how)
    return _finish(search, look, gap, words)


def _compiled(request: DiffRequest, job: Job, how: How, words: str) -> Result:
    """The compiled engine first: where its two ways differ, the search is made in an eager one, and what it finds is
    tried on the compiled one."""
    configured = compiled.ask(request, job, how)
    gap = compiled.between_ways(configured)
    assert configured.other is not None
    idle = not_taken(request.against, configured.plain, configured.other)
    if gap.exact or idle:
        search = Search(request, job, how, configured.rollout)
        return _finish(search, Look({}, gap, gone=True, first=None, item=None, idle=idle), gap, f"compiled, {words}")
    said = [f"compiled, {words}: {figures(gap)}; {compiled.NO_HOOKS}"]
    search, look, eager_gap = _searched(compiled.eager(request, configured.rollout), job, how)
    if look.switches:
        given = request.model_copy(update={"rollout": str(configured.rollout)})
        after = compiled.between_ways(compiled.ask(given, job, how, look.switches))
        named = " ".join(f"{name}={value}" for name, value in look.switches.items())
        said.append(f"the compiled engine with {named}: {figures(after)}")
    return _finish(search, look, eager_gap, f"eager, {words}", tuple(said))


def _searched(request: DiffRequest, job: Job, how: How) -> tuple[Search, Look, GapStats]:
    """The search, what is seen at its end, and the gap at its beginning."""
    search = Search(request, job, how)
    look = first_look = search.look({})
    while look.item is not None and len(search.work) < request.max_operators:
        following = search.name(look)
        if following is None:
            break
        look = following
    return search, look, first_look.gap


@dataclass(slots=True)
class Look:
    """Both ways under one set of switches."""

    switches: dict[str, str]
    gap: GapStats
    gone: bool
    """The site that was asked about has no differing row."""
    first: Pair | None
    item: WorkItem | None
    idle: str = ""
    """Why the other way took no effect: then equal logprobs show nothing."""


@dataclass(slots=True)
class Search:
    """What is known so far."""

    request: DiffRequest
    job: Job
    how: How
    rollout: Path | None = None
    work: list[WorkItem] = field(default_factory=list)
    passes: dict[str, int] = field(default_factory=dict)

    def look(self, switches: dict[str, str], site: Pair | None = None) -> Look:
        """Run both ways with these switches: is the difference at `site` gone, and which operator is first at fault?"""
        with self.job.open_side("rollout", self.request.experiment, env=switches) as engine:
            self._foresee(switches)
            if self.rollout is None:
                self.rollout = obtain(self.request.rollout, self.request.experiment, lambda: engine, self.job).folder
            data = rollout_store.read(self.rollout)
            if not bool(data.valid_N.any()):
                raise UserError("the rollout", "no valid token", "check its mask")
            asker = Asker(self.job, self.rollout, {"rollout": engine}, self.passes)
            plain = asker.score("rollout", "plain")
            other = asker.score("rollout", self.request.against, how=self.how)
            gap = stats(plain.logprob_N, other.logprob_N, data.valid_N & other.scored_N)
            idle = not_taken(self.request.against, plain.scores, other.scores)
            if gap.exact or idle:
                return Look(switches, gap, gone=True, first=None, item=None, idle=idle)
            differing_N = differs(plain.logprob_N, other.logprob_N) & other.scored_N
            sequences = within.chosen(data, differing_N)
            plan = CapturePlan(sequences=sequences, tokens=within.last_tokens(data, differing_N, sequences))
            seen = asker.score("rollout", "plain-digest", plan)
            seen_other = asker.score("rollout", f"{self.request.against}-digest", plan, how=self.how)
            if self.how != How():  # asked twice in the same way, the side itself moves its logprobs
                _undisturbed(data, (plain, seen), (other, seen_other))
            one, two = seen.taps, seen_other.taps
            if site is not None and any(counted.differing for counted in by_digest([site], one, two)):
                return Look(switches, gap, gone=False, first=None, item=None)
            first = within.first(one, two)
            index = len(self.work) + (site is not None)
            item = None if first is None else within.item(asker, "rollout", first, self.how, gap, index, plan)
        return Look(switches, gap, gone=True, first=first, item=item)

    def _foresee(self, switches: dict[str, str]) -> None:
        """Let the process of the switch that is likely tried next load its libraries while this one works."""
        experiment = self.request.experiment
        for trigger in likely(device_of(experiment)):
            if (experiment.rollout.env | switches).get(trigger.variable) != trigger.off:
                self.job.prepare("rollout", experiment, env=switches | {trigger.variable: trigger.off})
                return

    def name(self, look: Look) -> Look | None:
        """Put the item on the list with its cause: what it showed when it was run alone, or the trigger that its
        difference follows. A race or kept state is said before company is blamed.

        Returns:
            What is seen with a trigger off that took the item's difference away; None: there is no such trigger.
        """
        assert look.item is not None
        assert look.first is not None
        shown, tried = look.item.cause, []
        if shown.name in ("race", "state"):
            self.work.append(look.item)
            return None
        for trigger in for_kind(look.item.kind, device_of(self.request.experiment)):
            if (self.request.experiment.rollout.env | look.switches).get(trigger.variable) == trigger.off:
                continue
            setting = f"{trigger.variable}={trigger.off}"
            self.job.emit("trigger", setting)
            after = self.look(look.switches | {trigger.variable: trigger.off}, look.first)
            if after.gone:
                cause = Cause(
                    name="order_batch",
                    why=f"with {setting} every row of {look.first.trainer} is equal both ways: {trigger.meaning}",
                    switch={trigger.variable: trigger.off},
                    fingerprint=within.rows_of(look.item.bits),
                )
                self.work.append(look.item.model_copy(update={"cause": cause}))
                return after
            tried.append(f"{setting} does not take it away")
        if shown.name != "unknown":
            self.work.append(look.item)
            return None
        why = "; ".join(
            [*tried, shown.why] if tried else [f"no known trigger acts on {look.item.kind} here", shown.why]
        )
        self.work.append(look.item.model_copy(update={"cause": Cause(name="unknown", why=why)}))
        return None


def _undisturbed(data: RolloutData, *runs: tuple[Answer, Answer]) -> None:
    """Could the check fail: each captured run gives the logprobs of the same run without capture.

    Raises:
        UserError: it does not; then no capture of this side can be trusted.
    """
    for plain, captured in runs:
        both_N = data.valid_N & plain.scored_N & captured.scored_N
        moved = int((differs(plain.logprob_N, captured.logprob_N) & both_N).sum())
        if moved:
            raise UserError(
                "the rollout side",
                f"the captured run changes {moved} of {int(both_N.sum())} logprobs, so no capture of it can be trusted",
                "run `samebits measure --axes repeat`: is the side equal to itself when asked twice?",
            )


def _outcome(
    search: Search, look: Look, gap: GapStats, words: str, compiled_said: tuple[str, ...]
) -> tuple[Identical | Diverged | Incomparable, str, str]:
    """The outcome, its sentence, and the next step where nothing was shown."""
    if look.idle and not search.work:
        reason = f"{words}: not compared, {look.idle}"
        if gap.nonzero:
            reason += f"; yet {gap.nonzero} of {gap.tokens} logprobs differ"
        following = f"{REPEAT} asks in the same way" if gap.nonzero else WAKES.get(search.request.against, "")
        return Incomparable(reason=reason), f"{reason}. Nothing was shown.", following
    if search.work:
        named = "; then ".join(f"{item.kind} {item.between}: {item.cause.why}" for item in search.work)
        end = (
            "with these switches all logprobs are equal"
            if look.gap.exact
            else f"{look.gap.nonzero} logprobs stay unexplained"
        )
        summary = f"{words}: {gap.nonzero} of {gap.tokens} logprobs differ (max {gap.max:.3g}); {named}; {end}"
        return Diverged(first=search.work[0]), summary, ""
    if gap.exact and compiled_said:
        reason = "the two ways differ in the compiled engine alone"
        return Incomparable(reason=reason), f"{words}: {gap.tokens} logprobs equal to the bit: {reason}", ""
    if gap.exact:
        return Identical(compared=gap.tokens), f"{words}: {gap.tokens} logprobs equal to the bit", ""
    reason = "no module has equal inputs and another output: the difference is in what was not tapped"
    return Incomparable(reason=reason), f"{words}: {gap.nonzero} logprobs differ, {reason}", ""


def _finish(search: Search, look: Look, gap: GapStats, words: str, compiled_said: tuple[str, ...] = ()) -> Result:
    """The artifact and the answer.

    Args:
        compiled_said: what a compiled engine showed, whose two ways differ.
    """
    outcome, summary, following = _outcome(search, look, gap, words, compiled_said)
    assert search.rollout is not None
    folder = search.job.new("divergence")
    artifact.write(
        folder,
        DivergenceManifest(
            outcome=outcome,
            work=tuple(search.work),
            gap=gap,
            unexplained=look.gap,
            compared=gap.tokens,
            not_compared=(),
            passes=search.passes,
            before=compiled_said,
            made_from={"rollout": artifact.identity(search.rollout)},
            environment=environment(),
        ),
    )
    verdict = {"identical": "equal", "diverged": "differs", "incomparable": "unjudged"}[outcome.status]
    return Result.model_validate(
        {
            "verdict": verdict,
            "summary": "; ".join([*compiled_said[:1], summary, *compiled_said[1:]]),
            "ids": {"divergence": folder.name, "rollout": str(search.rollout)},
            "rows": report.rows(search.work, []),
            "total": len(search.work),
            "next": following,
        }
    )
