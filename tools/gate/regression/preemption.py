"""The preemption axis: sequences thrown out of a KV cache that is too small, and computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from samebits.tools.gate.regression import judge
from samebits.tools.gate.regression.bench import described, last_of_prompt
from samebits.tools.gate.regression.judge import Tried
from samebits.tools.job.job import device_of
from samebits.tools.job.sides import score_with
from samebits.tools.measure.ways import some
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.passes import How, Push
from samebits.tools.sides import rollout_store
from samebits.tools.sides.protocol import RolloutData, Sequence

if TYPE_CHECKING:
    from samebits.tools.gate.regression.bench import Bench
    from samebits.tools.gate.regression.changed import Nudged

NEW = 8
"""Sampled tokens of each made-up sequence: enough to cross the edge of a block. More where the gate needs them."""
FEWEST = 4
RESERVED = 1
"""Blocks that vLLM keeps for itself."""


def crossing(data: RolloutData, block: int, blocks: int = 1, new: int = NEW) -> RolloutData:
    """The rollout's tokens as sequences whose decode crosses the edge of a block, so that each asks for one more
    while all blocks are taken. The logprobs are placeholders.

    Args:
        block: tokens of a block.
        blocks: that each prompt nearly fills.
        new: sampled tokens of each.
    """
    sequences = []
    for i, sequence in enumerate(data.sequences):
        tokens = (sequence.prompt + sequence.sampled) * (block * blocks + new)
        length = block * blocks - 1 - i % (NEW - 2)
        sequences.append(Sequence(tokens[:length], tokens[length : length + new]))
    count = new * len(sequences)
    return RolloutData(sequences, torch.zeros(count), torch.ones(count, dtype=torch.bool), data.temperature)


def _nudged(bench: Bench) -> Nudged | None:
    try:
        return bench.nudged()
    except UserError:
        return None


def preemption(bench: Bench, tried: Tried) -> None:
    """An engine with room for all against one with blocks for half of the sequences; counts only when rows were
    computed again. Control: elements moved in the small one.
    """
    sides = bench.sides
    config = sides.experiment.rollout
    block = bench.fact("block_size")
    if config.side != "vllm" or not isinstance(block, int):
        tried.skipped.append(f"side {config.side!r} has no paged KV cache")
        return
    count = len(bench.data.sequences)
    if count < FEWEST or config.max_model_len < 2 * block + NEW:
        tried.skipped.append(
            f"{count} sequences of {block + NEW} tokens are needed, at least {FEWEST}; max_model_len is "
            f"{config.max_model_len}"
        )
        return
    # One sequence of the longest kind must fit, or the engine does not start.
    needed = -(-config.max_model_len // block)
    each = -(-needed // (count // 2))
    new = max(NEW, min(-(-bench.min_tokens // count), config.max_model_len - block * each))
    data, folder, job = crossing(bench.data, block, each, new), sides.job.new("crossing"), sides.job
    rollout_store.write(folder, data, side="made for the gate")
    roomy, _ = sides.score("rollout", folder)
    tap = bench.tap("rollout")
    if device_of(sides.experiment) == "cuda":
        sides.close("rollout")
    blocks = RESERVED + max(needed, count // 2 * each)
    engine = config.model_copy(update={"engine": dict(config.engine) | {"num_gpu_blocks_override": blocks}})
    flips = () if isinstance(tap, str) else bench.flips(tap, last_of_prompt, data)
    with job.open_side("rollout", sides.experiment.model_copy(update={"rollout": engine})) as session:
        tight, _ = score_with(session, job, "rollout", folder, How())
        words = f"room for {count} sequences against {blocks} blocks of {block} tokens"
        if why := some("recomputed_rows", "no sequence was preempted")(roomy, tight):
            tried.skipped.append(f"{words}: {why}")
            return
        words += f" ({tight.facts['recomputed_rows']} rows computed again)"
        used_N = data.valid_N & roomy.scored_N & tight.scored_N
        tried.compared.append(judge.compared(words, roomy.logprob_N, tight.logprob_N, used_N, new * count))
        if flips:
            words, moved = described(flips), score_with(session, job, "rollout", folder, How(), edits=flips)[0]
        elif (nudged := _nudged(bench)) is not None:
            session.ask(Push(weights=str(nudged.file), version=data.weight_version))
            words, moved = nudged.words, score_with(session, job, "rollout", folder, How())[0]
        else:
            tried.no_control = str(tap)
            return
    what = f"in the small engine alone, {words}"
    tried.control = judge.control(what, roomy.logprob_N, moved.logprob_N, data.valid_N & moved.scored_N)
