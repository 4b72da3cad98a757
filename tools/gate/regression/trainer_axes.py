"""Axes of the trainer side: repeat, micro batch, layout, gradients, checkpointing, and trainer against rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from samebits.tools.gate.regression import judge
from samebits.tools.gate.regression.judge import Tried
from samebits.tools.gate.regression.weight_axes import push
from samebits.tools.measure.ways import Variant, always, company
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.passes import How
from samebits.tools.sides.protocol import Scores

if TYPE_CHECKING:
    from samebits.tools.gate.regression.bench import Bench
    from samebits.tools.measure.ways import Proof

SIZES = (1, 2, 8)
CHANGED = "the same after other weights were pushed into both sides"
EDGES = "the engine against the trainer at lengths around edges"
LAYOUTS: tuple[Literal["single", "padded", "packed"], ...] = ("single", "padded", "packed")


def trainer_repeat(bench: Bench, tried: Tried) -> None:
    """The same call twice."""
    bench.against_plain(tried, "trainer", Variant(How(), "the same call twice", "", always))
    bench.disturb(tried, "trainer", How(), "in the second call alone")


def micro_batch(bench: Bench, tried: Tried) -> None:
    """The configured micro batch against others."""
    if bench.sides.experiment.trainer.layout == "single":
        reason = 'with trainer.layout = "single" each sequence is alone in any micro batch: set "packed" or "padded"'
        tried.skipped.append(reason)
        return
    own = bench.sides.experiment.trainer.micro_batch
    sizes = [size for size in dict.fromkeys((*SIZES, 2 * own)) if size != own]
    for size in sizes:
        words = f"micro batch {own} against {size}"
        bench.against_plain(tried, "trainer", Variant(How(concurrency=size), words, "", company))
    if tried.compared:
        bench.disturb(tried, "trainer", How(concurrency=sizes[0]), f"at micro batch {sizes[0]} alone")


def layout(bench: Bench, tried: Tried) -> None:
    """Sequences one by one, packed into one row, right-padded into a rectangle."""
    own = bench.sides.experiment.trainer.layout
    others = [one for one in LAYOUTS if one != own]
    for other in others:
        how = How(layout=other, concurrency=max(4, bench.sides.experiment.trainer.micro_batch))
        if other != "single" and len(bench.data.sequences) < 2:
            tried.skipped.append(f"{other}: one sequence has no company")
            continue
        try:
            bench.against_plain(tried, "trainer", Variant(how, f"{own} against {other}", "", _laid_out))
        except UserError as error:
            tried.skipped.append(f"{other}: {error.thing}: {error.reason}")
    if tried.compared:
        bench.disturb(tried, "trainer", How(layout=others[0]), f"laid out {others[0]} alone")


def _laid_out(plain: Scores, other: Scores) -> str:
    """Another layout, in fact."""
    a, b = plain.facts.get("layout"), other.facts.get("layout")
    return "" if a != b else f"the layout was {a} both times"


def gradients(bench: Bench, tried: Tried) -> None:
    """Without the graph of the backward pass against with it, and the backward pass run."""
    _with_gradients(bench, tried, How(gradients="yes"), "without gradients against with a backward pass")


def checkpointing(bench: Bench, tried: Tried) -> None:
    """The same with gradient checkpointing: layers are computed again in the backward pass."""
    _with_gradients(bench, tried, How(gradients="checkpointed"), "without gradients against gradient checkpointing")


def _with_gradients(bench: Bench, tried: Tried, how: How, words: str) -> None:
    bench.against_plain(tried, "trainer", Variant(how, words, "", _had(how.gradients)))
    if tried.compared:
        bench.disturb(tried, "trainer", how, "with gradients alone")


def _had(gradients: str) -> Proof:
    def proof(_plain: Scores, other: Scores) -> str:
        told = other.facts.get("gradients")
        return "" if told == gradients else f"this side has no such way (gradients: {told})"

    return proof


def trainer_rollout(bench: Bench, tried: Tried) -> None:
    """Reported against recomputed logprobs; and again after other weights went into both sides.

    Control: one element moved in the trainer.
    """
    plain = bench.plain["trainer"]
    data = bench.data
    reported = Scores(data.logprob_N, data.valid_N)
    bench.compare(tried, "reported by the rollout side against recomputed by the trainer", reported, plain)
    bench.disturb(tried, "trainer", How(), "in the trainer", against=reported)
    if bench.with_changed is not None and bench.changed is not None:
        push(bench, "trainer", bench.changed.whole)
        after, _ = bench.sides.score("trainer", bench.source.folder)
        bench.compare(tried, CHANGED, bench.with_changed, after)
        push(bench, "trainer", bench.changed.original)
    else:
        tried.skipped.append(f"{CHANGED}: the axis reload left no scores in this job (ask for both at once)")
    if bench.edges is None:
        tried.skipped.append(f"{EDGES}: the axis lengths left no scores in this job (ask for both at once)")
    else:
        folder, engine = bench.edges
        try:
            recomputed, _ = bench.sides.score("trainer", folder)
        except UserError as error:
            tried.skipped.append(f"{EDGES}: {error.thing}: {error.reason}")
            return
        used_N = engine.scored_N & recomputed.scored_N
        tried.compared.append(judge.compared(EDGES, engine.logprob_N, recomputed.logprob_N, used_N, len(used_N)))
