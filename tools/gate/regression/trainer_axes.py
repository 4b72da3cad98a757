"""Axes of the trainer side: repeat, micro batch, and trainer against rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.tools.gate.regression.judge import Tried
from samebits.tools.gate.regression.weight_axes import push
from samebits.tools.measure.ways import Variant, always, company
from samebits.tools.schema.passes import How
from samebits.tools.sides.protocol import Scores

if TYPE_CHECKING:
    from samebits.tools.gate.regression.bench import Bench

SIZES = (1, 2, 8)


def trainer_repeat(bench: Bench) -> Tried:
    """The same call twice."""
    tried = Tried()
    bench.against_plain(tried, "trainer", Variant(How(), "the same call twice", "", always))
    bench.flip_control(tried, "trainer", How(), "in the second call alone")
    return tried


def micro_batch(bench: Bench) -> Tried:
    """The configured micro batch against others."""
    tried, own = Tried(), bench.sides.experiment.trainer.micro_batch
    sizes = [size for size in dict.fromkeys((*SIZES, 2 * own)) if size != own]
    for size in sizes:
        words = f"micro batch {own} against {size}"
        bench.against_plain(tried, "trainer", Variant(How(concurrency=size), words, "", company))
    if tried.compared:
        bench.flip_control(tried, "trainer", How(concurrency=sizes[0]), f"at micro batch {sizes[0]} alone")
    return tried


def trainer_rollout(bench: Bench) -> Tried:
    """Reported against recomputed logprobs; and again after other weights went into both sides.

    Control: one element moved in the trainer.
    """
    tried, plain = Tried(), bench.plain["trainer"]
    data = bench.data
    reported = Scores(data.logprob_N, data.valid_N)
    bench.compare(tried, "reported by the rollout side against recomputed by the trainer", reported, plain)
    bench.flip_control(tried, "trainer", How(), "in the trainer", against=reported)
    if bench.with_changed is not None and bench.changed is not None:
        push(bench, "trainer", bench.changed.whole)
        after, _ = bench.sides.score("trainer", bench.source.folder)
        words = "the same after other weights were pushed into both sides"
        bench.compare(tried, words, bench.with_changed, after)
        push(bench, "trainer", bench.changed.original)
    return tried
