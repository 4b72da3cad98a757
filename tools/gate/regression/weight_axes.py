"""Axes that push weights into the running rollout side: prefix hits (whose control is a stale prefix) and reload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.tools.gate.regression.bench import disturbed
from samebits.tools.gate.regression.changed import Changed, change
from samebits.tools.gate.regression.judge import Tried
from samebits.tools.measure import gap
from samebits.tools.measure.ways import Variant, some
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.passes import How, Push

if TYPE_CHECKING:
    from pathlib import Path

    from samebits.tools.gate.regression.bench import Bench
    from samebits.tools.job.sides import Role


def push(bench: Bench, role: Role, weights: Path, *, reset: bool = True) -> None:
    """Weights into a live side; the version stays, as the rollout is not sampled again."""
    version = bench.data.weight_version
    bench.sides.session(role).ask(Push(weights=str(weights), version=version, reset=reset))


def others(bench: Bench) -> Changed:
    """Changed weights, made once.

    Raises:
        UserError: the model is no folder of weights.
    """
    if bench.changed is None:
        bench.changed = change(bench.sides.experiment.rollout.model, bench.sides.job)
    return bench.changed


def prefix_hit(bench: Bench, tried: Tried) -> None:
    """Cold against warm prefix cache.

    Control: prompts cached under the old weights, other weights pushed without a reset, so that the hits are stale.
    """
    hits = some("prefix_hit_tokens", "no prompt holds a whole cached block")
    bench.against_plain(tried, "rollout", Variant(How(warm_prefix=True), "cold against warm prefix cache", "", hits))
    if not tried.compared:
        return
    try:
        weights = others(bench)
    except UserError as error:
        tried.no_control = f"{error.thing}: {error.reason}"
        return
    push(bench, "rollout", weights.whole, reset=False)
    stale, _ = bench.sides.score("rollout", bench.source.folder, How(keep_cache=True))
    fresh, _ = bench.sides.score("rollout", bench.source.folder)
    push(bench, "rollout", weights.original)
    words = "prefixes of the old weights left in the cache while others are pushed"
    if why := hits(fresh, stale):
        tried.no_control = f"{words}: {why}"
    else:
        tried.control = disturbed(bench, words, fresh, stale)


def reload(bench: Bench, tried: Tried) -> None:
    """The same weights pushed, and other weights and back: the first bits must return. Leaves `bench.with_changed`.

    Control: other weights of which one tensor was not pushed, against all of them pushed.
    """
    plain = bench.plain["rollout"]
    try:
        weights = others(bench)
    except UserError as error:
        tried.skipped.append(f"{error.thing}: {error.reason}")
        return
    push(bench, "rollout", weights.original)
    again, _ = bench.sides.score("rollout", bench.source.folder)
    bench.compare(tried, "before against after a push of the same weights", plain, again)
    push(bench, "rollout", weights.whole)
    changed, _ = bench.sides.score("rollout", bench.source.folder)
    push(bench, "rollout", weights.partly)
    partly, _ = bench.sides.score("rollout", bench.source.folder)
    push(bench, "rollout", weights.original)
    back, _ = bench.sides.score("rollout", bench.source.folder)
    bench.with_changed = changed
    if bool((gap.differs(plain.logprob_N, changed.logprob_N) & bench.used(plain, changed)).any()):
        bench.compare(tried, "before against after other weights and the first ones again", plain, back)
    else:
        tried.skipped.append("other weights and the first ones again: the other weights moved no logprob")
    words = f"{weights.left} not pushed with the others"
    tried.control = disturbed(bench, words, changed, partly)
