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
LAYOUTS: tuple[Literal["single", "padded", "packed"], ...] = ("single", "padded", "packed")


def trainer_repeat(bench: Bench) -> Tried:
    """The same call twice."""
    tried = Tried()
    bench.against_plain(tried, "trainer", Variant(How(), "the same call twice", "", always))
    bench.disturb(tried, "trainer", How(), "in the second call alone")
    return tried


def micro_batch(bench: Bench) -> Tried:
    """The configured micro batch against others."""
    tried, own = Tried(), bench.sides.experiment.trainer.micro_batch
    sizes = [size for size in dict.fromkeys((*SIZES, 2 * own)) if size != own]
    for size in sizes:
        words = f"micro batch {own} against {size}"
        bench.against_plain(tried, "trainer", Variant(How(concurrency=size), words, "", company))
    if tried.compared:
        bench.disturb(tried, "trainer", How(concurrency=sizes[0]), f"at micro batch {sizes[0]} alone")
    return tried


def layout(bench: Bench) -> Tried:
    """Sequences one by one, packed into one row, right-padded into a rectangle."""
    tried, own = Tried(), bench.sides.experiment.trainer.layout
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
    return tried


def _laid_out(plain: Scores, other: Scores) -> str:
    """Another layout, in fact."""
    a, b = plain.facts.get("layout"), other.facts.get("layout")
    return "" if a != b else f"the layout was {a} both times"


def gradients(bench: Bench) -> Tried:
    """Without the graph of the backward pass against with it, and the backward pass run."""
    return _with_gradients(bench, How(gradients="yes"), "without gradients against with a backward pass")


def checkpointing(bench: Bench) -> Tried:
    """The same with gradient checkpointing: layers are computed again in the backward pass."""
    return _with_gradients(bench, How(gradients="checkpointed"), "without gradients against gradient checkpointing")


def _with_gradients(bench: Bench, how: How, words: str) -> Tried:
    tried = Tried()
    bench.against_plain(tried, "trainer", Variant(how, words, "", _had(how.gradients)))
    if tried.compared:
        bench.disturb(tried, "trainer", how, "with gradients alone")
    return tried


def _had(gradients: str) -> Proof:
    def proof(_plain: Scores, other: Scores) -> str:
        told = other.facts.get("gradients")
        return "" if told == gradients else f"this side has no such way (gradients: {told})"

    return proof


def trainer_rollout(bench: Bench) -> Tried:
    """Reported against recomputed logprobs; and again after other weights went into both sides.

    Control: one element moved in the trainer.
    """
    tried, plain = Tried(), bench.plain["trainer"]
    data = bench.data
    reported = Scores(data.logprob_N, data.valid_N)
    bench.compare(tried, "reported by the rollout side against recomputed by the trainer", reported, plain)
    bench.disturb(tried, "trainer", How(), "in the trainer", against=reported)
    if bench.with_changed is not None and bench.changed is not None:
        push(bench, "trainer", bench.changed.whole)
        after, _ = bench.sides.score("trainer", bench.source.folder)
        words = "the same after other weights were pushed into both sides"
        bench.compare(tried, words, bench.with_changed, after)
        push(bench, "trainer", bench.changed.original)
    if bench.edges is not None:
        folder, engine = bench.edges
        try:
            recomputed, _ = bench.sides.score("trainer", folder)
        except UserError as error:
            tried.skipped.append(f"lengths at edges: {error.thing}: {error.reason}")
            return tried
        used_N = engine.scored_N & recomputed.scored_N
        words = "the engine against the trainer at lengths around edges"
        tried.compared.append(judge.compared(words, engine.logprob_N, recomputed.logprob_N, used_N, len(used_N)))
    return tried
