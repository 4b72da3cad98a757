"""The lengths axis: sequences that end just before, at and just behind the edges of tiles, blocks and graphs.

Legend: N sampled tokens in all.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from samebits.tools.gate.regression import judge
from samebits.tools.gate.regression.bench import described, last_of_prompt
from samebits.tools.gate.regression.engine_axes import around, block_of
from samebits.tools.gate.regression.judge import Tried
from samebits.tools.measure.ways import company, path
from samebits.tools.schema.passes import How
from samebits.tools.sides import rollout_store
from samebits.tools.sides.protocol import RolloutData, Sequence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from samebits.tools.gate.regression.bench import Bench

NEW = 8
"""Sampled tokens of each made-up sequence: decode crosses the edge."""
EDGES = {"fast": (16, 64), "full": (16, 32, 64, 128, 256, 512, 1024)}
"""Of tiles, besides one and two blocks of the KV cache, and the longest sequence there may be."""


def at_edges(bench: Bench) -> tuple[RolloutData, list[int]]:
    """Prompts of the rollout's own tokens, one less than each edge, of the edge and one more; and the edges. Several
    of each length where one gives fewer tokens than the gate needs, as far as the rollout has other windows.
    """
    data, config = bench.data, bench.sides.experiment.rollout
    own = max(len(s.prompt) + len(s.sampled) for s in data.sequences)
    most = config.max_model_len if config.side == "vllm" else own
    block = block_of(bench)
    edges = sorted({edge for edge in (*EDGES[bench.coverage], block, 2 * block) if edge + 1 + NEW <= most})
    lengths = [length for length in dict.fromkeys((*around(tuple(edges)), most - NEW)) if length > 0]
    windows = _windows([token for s in data.sequences for token in s.tokens], lengths)
    sequences = list(itertools.islice(windows, max(len(lengths), -(-bench.min_tokens // NEW))))
    count = NEW * len(sequences)
    made = RolloutData(sequences, torch.zeros(count), torch.ones(count, dtype=torch.bool), data.temperature)
    return made, edges


def _windows(own: list[int], lengths: list[int]) -> Iterator[Sequence]:
    """One of each length, the last of them the longest, then more of the others from elsewhere in these tokens, which
    go round; no two are equal."""
    tokens = own * (2 + (max(lengths, default=0) + NEW) // len(own))
    seen = set[tuple[int, ...]]()
    for first in range(0, len(own), len(lengths)):
        for i, length in enumerate(lengths if first == 0 else lengths[:-1]):
            start = (first + i) % len(own)
            window = tokens[start : start + length + NEW]
            if tuple(window) not in seen:
                seen.add(tuple(window))
                yield Sequence(window[:length], window[length:])


def lengths(bench: Bench, tried: Tried) -> None:
    """All in flight against each alone, and decode against prefill. Leaves `bench.edges` for trainer_rollout."""
    sides = bench.sides
    data, edges = at_edges(bench)
    if not edges:
        tried.skipped.append("no edge lies within the longest sequence there may be")
        return
    folder = sides.job.new("edges")
    rollout_store.write(folder, data, side="made for the gate", notes=("lengths around edges",))
    plain, _ = sides.score("rollout", folder)
    bench.edges = (folder, plain)
    named = ", ".join(str(edge) for edge in edges)
    if len(plain.logprob_N) < bench.min_tokens:
        made = f"its tokens make {len(data.sequences)} different sequences of these lengths, {NEW} sampled tokens each"
        tried.skipped.append(f"lengths around {named}: {made}; the rollout has too few")
    for how, words, proof in (
        (How(concurrency=1), f"lengths around {named}: all in flight against each alone", company),
        (How(path="prefill"), f"lengths around {named}: decode against one prefill per token", path),
    ):
        other, _ = sides.score("rollout", folder, how)
        if why := proof(plain, other):
            tried.skipped.append(f"{words}: {why}")
            continue
        used_N = plain.scored_N & other.scored_N
        tried.compared.append(judge.compared(words, plain.logprob_N, other.logprob_N, used_N, len(used_N)))
    if tried.compared:
        tap = bench.tap("rollout")
        flips = () if isinstance(tap, str) else bench.flips(tap, last_of_prompt, data)
        if flips:
            moved, _ = sides.score("rollout", folder, How(concurrency=1), edits=flips)
            words = f"each alone, {described(flips)}"
            tried.control = judge.control(words, plain.logprob_N, moved.logprob_N, plain.scored_N & moved.scored_N)
        else:
            bench.nudged_control(tried, "rollout", How(concurrency=1), "each alone, the rollout's own lengths")
