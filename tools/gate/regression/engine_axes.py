"""Axes of one running rollout side: repeat, batch, order, graph buckets, decode against prefill, chunked prefill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.tools.gate.regression.company import companies, filled, turned
from samebits.tools.gate.regression.judge import Tried
from samebits.tools.measure.axes import RESCORED
from samebits.tools.measure.ways import Variant, always, company, path, some
from samebits.tools.schema.passes import How
from samebits.tools.sides.protocol import Scores

if TYPE_CHECKING:
    from samebits.tools.gate.regression.bench import Bench
    from samebits.tools.sides.protocol import Sequence

SIZES = (1, 2, 8)
BATCHES = {"fast": (64,), "full": (64, 256)}
"""Larger batches, filled with made-up neighbours."""
TILES = {"fast": (), "full": (16, 64)}
"""Edges besides that of a block, around which prefills are cut."""
BUCKETS = {"fast": 3, "full": 8}
"""CUDA-graph sizes whose edges are tried, spread over those that the engine captured."""
PAGE = 16
"""Tokens of a block where the side names none."""


def repeat(bench: Bench, tried: Tried) -> None:
    """The same call twice; a generated rollout also against its own tokens forced."""
    plain = bench.plain["rollout"]
    if bench.source.generated:
        data = bench.data
        free = Scores(data.logprob_N, data.valid_N)
        bench.compare(tried, "sampled freely against the same tokens forced", free, plain)
    bench.against_plain(tried, "rollout", Variant(How(), "the same call twice", "", always))
    bench.disturb(tried, "rollout", How(), "in the second call alone")


def batch(bench: Bench, tried: Tried) -> None:
    """All in flight against each alone, two and eight at a time, and among other neighbours.

    Its control needs an engine of its own where a switch is known that makes a row depend on its company
    (process_axes.py); elsewhere an element is moved when each is alone.
    """
    for size in SIZES:
        words = "each alone" if size == 1 else f"{size} at a time"
        bench.against_plain(
            tried, "rollout", Variant(How(concurrency=size), f"all in flight against {words}", "", company)
        )
    for one in companies(bench.data, bench.min_tokens):
        bench.among(tried, one)
    for size in BATCHES[bench.coverage]:
        if size <= len(bench.data.sequences):
            how = How(concurrency=size)
            bench.against_plain(tried, "rollout", Variant(how, f"all in flight against {size} at a time", "", company))
        elif (most := _most(bench)) is not None and size > most:
            tried.skipped.append(f"a batch of {size}: this engine runs {most} sequences at most (max_num_seqs)")
        else:
            bench.among(tried, filled(bench.data, size), least=size)


def _most(bench: Bench) -> int | None:
    """Most sequences that the side runs at once; None: it does not say."""
    most = bench.fact("most_in_flight")
    return most if isinstance(most, int) else None


def batch_by_flip(bench: Bench, tried: Tried) -> None:
    """The control of batch where no switch is known."""
    bench.disturb(tried, "rollout", How(concurrency=1), "when each is alone")


def order(bench: Bench, tried: Tried) -> None:
    """Requests in the reverse order, all in flight and two at a time; and each in other places of the batch."""
    if len(bench.data.sequences) < 2:
        tried.skipped.append("one sequence has one order")
        return
    for how, words in ((How(reverse=True), "all in flight"), (How(reverse=True, concurrency=2), "two at a time")):
        bench.against_plain(tried, "rollout", Variant(how, f"requests in the reverse order, {words}", "", _turned))
    count = len(bench.data.sequences)
    for by in dict.fromkeys((1, count // 2) if bench.coverage == "fast" else range(1, count, max(1, count // 8))):
        bench.among(tried, turned(bench.data, by))
    bench.disturb(tried, "rollout", How(reverse=True), "in the reverse order alone")


def _turned(_plain: Scores, other: Scores) -> str:
    size = other.facts.get("largest_batch")
    return "" if isinstance(size, int) and size > 1 else "this side has one sequence in flight at most"


def graph_buckets(bench: Bench, tried: Tried) -> None:
    """Batches of a CUDA-graph size and of one more, which runs in the next larger graph with padding rows."""
    data = bench.data
    told = str(bench.fact("graph_sizes") or "")
    sizes = [int(size) for size in told.split(", ") if size]
    if str(bench.fact("graphs") or "NONE") == "NONE" or not sizes:
        tried.skipped.append("this engine runs no CUDA graphs")
        return
    most = _most(bench) or sizes[-1]
    edges = [size for size in sizes if size <= most]
    edges = spread(edges, BUCKETS[bench.coverage])
    for size in dict.fromkeys(n for edge in edges for n in (edge, edge + 1) if n <= most):
        if size < len(data.sequences):
            words = f"all in flight against {size} at a time"
            bench.against_plain(tried, "rollout", Variant(How(concurrency=size), words, "", company))
        elif size > len(data.sequences):
            bench.among(tried, filled(data, size), least=size)
    if tried.compared:
        how = How(concurrency=min(3, len(data.sequences)))
        bench.disturb(tried, "rollout", how, f"{how.concurrency} at a time, which no graph was captured for")


def spread(edges: list[int], count: int) -> list[int]:
    """At most `count` of them, from the smallest to the largest, both among them."""
    last = len(edges) - 1
    return edges if last < count else [edges[round(i * last / (count - 1))] for i in range(count)]


def decode_prefill(bench: Bench, tried: Tried) -> None:
    """Decode steps against one prefill per token, thinned evenly to RESCORED tokens or what the gate needs."""
    stride = max(1, -(-bench.data.valid_N.numel() // RESCORED))
    while int(bench.data.valid_N[::stride].sum()) < min(bench.min_tokens, bench.valid):
        stride -= 1
    thinned = bench.data.valid_N[::stride]
    words = "decode against one prefill per token" + (f" (one token in {stride})" if stride > 1 else "")
    how = How(path="prefill", stride=stride)
    bench.against_plain(tried, "rollout", Variant(how, words, "", path), due=int(thinned.sum()))
    if tried.compared:
        rows = _prefilled(bench, stride)
        bench.disturb(
            tried, "rollout", how, "in the prefill path alone", lambda s: len(s.prompt) - 1 if id(s) in rows else None
        )


def _prefilled(bench: Bench, stride: int) -> set[int]:
    """Sequences of which some token is rescored."""
    found, start = set[int](), 0
    for sequence in bench.data.sequences:
        if any((start + k) % stride == 0 for k in range(len(sequence.sampled))):
            found.add(id(sequence))
        start += len(sequence.sampled)
    return found


def chunked_prefill(bench: Bench, tried: Tried) -> None:
    """Whole prefills against token budgets around the edge of a block (one sequence at a time, so that the budget is
    the chunk), and one budget shared by all.
    """
    data, block = bench.data, block_of(bench)
    longest = max(len(sequence.prompt) for sequence in data.sequences)
    proof = some("chunked_prefills", "no prefill was cut")
    edges = [size for size in around((block, *TILES[bench.coverage])) if size < longest]
    if block - 1 >= longest:
        tried.skipped.append(f"chunks of {block - 1} to {block + 1}: the longest prompt has {longest} tokens")
        edges = [size for size in around((PAGE,)) if size < longest]
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
        bench.disturb(tried, "rollout", how, f"in the first row behind a chunk of {edges[0]} tokens", edge)


def block_of(bench: Bench) -> int:
    """Tokens of a block of the side's KV cache."""
    told = bench.fact("block_size")
    return told if isinstance(told, int) else PAGE


def around(edges: tuple[int, ...]) -> list[int]:
    """One less, the edge, one more."""
    return list(dict.fromkeys(size for edge in edges for size in (edge - 1, edge, edge + 1)))
