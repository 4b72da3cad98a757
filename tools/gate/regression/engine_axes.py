"""Axes of one running rollout side: repeat, batch, order, decode against prefill, chunked prefill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.tools.gate.regression.company import companies
from samebits.tools.gate.regression.judge import Tried
from samebits.tools.measure.axes import RESCORED
from samebits.tools.measure.ways import Variant, always, company, path, some
from samebits.tools.schema.passes import How
from samebits.tools.sides import rollout_store
from samebits.tools.sides.protocol import Scores

if TYPE_CHECKING:
    from samebits.tools.gate.regression.bench import Bench
    from samebits.tools.sides.protocol import Sequence

SIZES = (1, 2, 8)
PAGE = 16
"""Tokens of a block where the side names none."""


def repeat(bench: Bench) -> Tried:
    """The same call twice; a generated rollout also against its own tokens forced."""
    tried, plain = Tried(), bench.plain["rollout"]
    if bench.source.generated:
        data = bench.data
        free = Scores(data.logprob_N, data.valid_N)
        bench.compare(tried, "sampled freely against the same tokens forced", free, plain)
    bench.against_plain(tried, "rollout", Variant(How(), "the same call twice", "", always))
    bench.flip_control(tried, "rollout", How(), "in the second call alone")
    return tried


def batch(bench: Bench) -> Tried:
    """All in flight against each alone, two and eight at a time, and among other neighbours.

    Its control needs an engine of its own where a switch is known that makes a row depend on its company
    (process_axes.py); elsewhere an element is moved when each is alone.
    """
    tried = Tried()
    for size in SIZES:
        words = "each alone" if size == 1 else f"{size} at a time"
        bench.against_plain(
            tried, "rollout", Variant(How(concurrency=size), f"all in flight against {words}", "", company)
        )
    for one in companies(bench.data):
        folder = bench.sides.job.new("company")
        rollout_store.write(folder, one.data, side="made for the gate", notes=(one.words,))
        scores, _ = bench.sides.score("rollout", folder)
        if scores.facts.get("largest_batch") == 1:
            tried.skipped.append(f"{one.words}: this side has one sequence in flight at most")
            continue
        back = one.back(scores, bench.data)
        words = f"every second sequence among {one.words}"
        bench.compare(tried, words, bench.plain["rollout"], back, one.due(bench.data))
    return tried


def batch_by_flip(bench: Bench, tried: Tried) -> None:
    """The control of batch where no switch is known."""
    bench.flip_control(tried, "rollout", How(concurrency=1), "when each is alone")


def order(bench: Bench) -> Tried:
    """Requests in the reverse order, all in flight and two at a time."""
    tried = Tried()
    if len(bench.data.sequences) < 2:
        tried.skipped.append("one sequence has one order")
        return tried
    for how, words in ((How(reverse=True), "all in flight"), (How(reverse=True, concurrency=2), "two at a time")):
        bench.against_plain(tried, "rollout", Variant(how, f"requests in the reverse order, {words}", "", _turned))
    bench.flip_control(tried, "rollout", How(reverse=True), "in the reverse order alone")
    return tried


def _turned(_plain: Scores, other: Scores) -> str:
    size = other.facts.get("largest_batch")
    return "" if isinstance(size, int) and size > 1 else "this side has one sequence in flight at most"


def decode_prefill(bench: Bench) -> Tried:
    """Decode steps against one prefill per token, thinned evenly to RESCORED tokens."""
    tried = Tried()
    count = int(bench.data.valid_N.numel())
    stride = max(1, -(-count // RESCORED))
    thinned = bench.data.valid_N[::stride]
    words = "decode against one prefill per token" + (f" (one token in {stride})" if stride > 1 else "")
    how = How(path="prefill", stride=stride)
    bench.against_plain(tried, "rollout", Variant(how, words, "", path), due=int(thinned.sum()))
    if tried.compared:
        rows = _prefilled(bench, stride)
        bench.flip_control(
            tried, "rollout", how, "in the prefill path alone", lambda s: len(s.prompt) - 1 if id(s) in rows else None
        )
    return tried


def _prefilled(bench: Bench, stride: int) -> set[int]:
    """Sequences of which some token is rescored."""
    found, start = set[int](), 0
    for sequence in bench.data.sequences:
        if any((start + k) % stride == 0 for k in range(len(sequence.sampled))):
            found.add(id(sequence))
        start += len(sequence.sampled)
    return found


def chunked_prefill(bench: Bench) -> Tried:
    """Whole prefills against token budgets around the edge of a block (one sequence at a time, so that the budget is
    the chunk), and one budget shared by all.
    """
    tried, data = Tried(), bench.data
    opened = bench.sides.session("rollout").opened
    told = opened.facts.get("block_size") if opened is not None else None
    block = told if isinstance(told, int) else PAGE
    longest = max(len(sequence.prompt) for sequence in data.sequences)
    proof = some("chunked_prefills", "no prefill was cut")
    edges = [size for size in (block - 1, block, block + 1) if size < longest]
    if not edges:
        tried.skipped.append(f"chunks of {block - 1} to {block + 1}: the longest prompt has {longest} tokens")
        edges = [size for size in (PAGE - 1, PAGE, PAGE + 1) if size < longest]
    for size in edges:
        how = How(chunk=size, concurrency=1)
        bench.against_plain(
            tried, "rollout", Variant(how, f"whole prefills against chunks of {size} tokens", "", proof)
        )
    shared = max(16, len(data.sequences) + 1, longest // 3)
    words = f"whole prefills against a budget of {shared} tokens a step, shared by all"
    bench.against_plain(tried, "rollout", Variant(How(chunk=shared), words, "", proof))
    if tried.compared and edges:

        def edge(sequence: Sequence) -> int | None:
            return edges[0] if len(sequence.prompt) > edges[0] else None

        how = How(chunk=edges[0], concurrency=1)
        bench.flip_control(tried, "rollout", how, f"in the first row behind a chunk of {edges[0]} tokens", edge)
    return tried
