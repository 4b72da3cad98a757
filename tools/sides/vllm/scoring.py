"""Scoring a stored rollout on the engine, in each of the ways `How` names.

Legend: N sampled tokens in all.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.schema.errors import UserError
from samebits.tools.sides.protocol import Scores
from samebits.tools.sides.vllm import control, engine
from samebits.tools.sides.vllm.batch import request_id

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from samebits.tools.schema.passes import How
    from samebits.tools.schema.sites import CapturePlan, Edit
    from samebits.tools.sides.protocol import RolloutData
    from samebits.tools.sides.vllm.side import VllmSide


def score(
    side: VllmSide,
    data: RolloutData,
    how: How,
    plan: CapturePlan | None,
    edits: tuple[Edit, ...],
    folder: Path,
    *,
    force: bool = True,
) -> Scores:
    """See `VllmSide.score`. `force` False leaves the drawn ids as they are: the control of the forcing itself."""
    llm = side.llm
    prepared = prepare(data, how, cold=plan is not None or how.path == "prefill")
    if how.reverse:
        prepared.reverse()
    if not how.keep_cache:
        engine.reset_cache(llm)
    if how.warm_prefix:
        _warm(side, data)
    sequences = [sequence.prompt + sequence.sampled for sequence in data.sequences]
    prompts = [len(sequence.prompt) for sequence in data.sequences]
    side.worker(control.begin, sequences, prompts, force, plan, edits, _kept(data, how, plan))
    try:
        with _budget(llm, how.chunk):
            done = engine.drive(llm, [request for request, _, _ in prepared], how.concurrency)
    except BaseException:
        side.worker(control.end, None, True)
        raise
    facts = side.worker(control.end, str(folder / "capture") if plan is not None else None, False)
    return _collect(data, prepared, done, facts, force)


def prepare(data: RolloutData, how: How, cold: bool) -> list[tuple[engine.Request, int, int]]:
    """Requests with the sequence and the first sampled token each of them scores, in order."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    def request(index: int, start: int, count: int) -> tuple[engine.Request, int, int]:
        sequence = data.sequences[index]
        # No seed: the drawn ids are overwritten, and a seeded prompt cannot be cut on CPU.
        params = SamplingParams(
            max_tokens=count,
            temperature=data.temperature,
            top_p=data.top_p,
            top_k=data.top_k or -1,
            logprobs=0,
            detokenize=False,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_reading_prefix_cache=cold or None,
        )
        return (
            engine.Request(request_id(index, start), sequence.prompt + sequence.sampled[:start], params),
            index,
            start,
        )

    if how.path == "decode":
        return [
            request(index, 0, len(sequence.sampled))
            for index, sequence in enumerate(data.sequences)
            if sequence.sampled
        ]
    chosen = []
    at = 0
    for index, sequence in enumerate(data.sequences):
        chosen += [request(index, start, 1) for start in range(len(sequence.sampled)) if (at + start) % how.stride == 0]
        at += len(sequence.sampled)
    return chosen


def _kept(data: RolloutData, how: How, plan: CapturePlan | None) -> frozenset[str] | None:
    """Names of the requests whose rows are recorded; None: all."""
    if how.path != "prefill" or plan is None or plan.tokens is None:
        return None
    every = [(index, start) for index, one in enumerate(data.sequences) for start in range(len(one.sampled))]
    return frozenset(request_id(*every[token]) for token in plan.tokens)


def _warm(side: VllmSide, data: RolloutData) -> None:
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False, ignore_eos=True)
    requests = [
        engine.Request(request_id(index), sequence.prompt, params) for index, sequence in enumerate(data.sequences)
    ]
    engine.drive(side.llm, requests, None)


@contextmanager
def _budget(llm: Any, chunk: int | None) -> Iterator[None]:
    """Change the token budget of one step on the live scheduler."""
    if chunk is None:
        yield
        return
    config = llm.llm_engine.vllm_config.scheduler_config
    if chunk > config.max_num_batched_tokens:
        raise UserError(
            f"chunk = {chunk}",
            f"more than the engine's buffers hold ({config.max_num_batched_tokens} tokens)",
            "raise max_num_batched_tokens in [rollout.engine] or choose a smaller chunk",
        )
    if not config.enable_chunked_prefill:
        raise UserError(
            "chunked prefill",
            "is switched off in this engine",
            "remove enable_chunked_prefill = false from [rollout.engine]",
        )
    scheduler = engine.scheduler(llm)
    usual = scheduler.max_num_scheduled_tokens
    scheduler.max_num_scheduled_tokens = chunk
    try:
        yield
    finally:
        scheduler.max_num_scheduled_tokens = usual


def _collect(
    data: RolloutData,
    prepared: list[tuple[engine.Request, int, int]],
    done: dict[str, Any],
    facts: dict[str, Any],
    force: bool,
) -> Scores:
    lengths = [len(sequence.sampled) for sequence in data.sequences]
    offsets = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    logprob_N = torch.zeros(offsets[-1], dtype=torch.float32)
    scored_N = torch.zeros(offsets[-1], dtype=torch.bool)
    hits = other = 0
    for request, index, start in prepared:
        output = done[request.name]
        ids = list(output.outputs[0].token_ids)
        wanted = data.sequences[index].sampled[start : start + len(ids)]
        other += sum(a != b for a, b in zip(ids, wanted, strict=True))
        where = slice(offsets[index] + start, offsets[index] + start + len(ids))
        logprob_N[where] = torch.tensor(engine.sampled_logprobs(output), dtype=torch.float32)
        scored_N[where] = True
        hits += output.num_cached_tokens or 0
    assert not (force and other), f"{other} tokens came out other than forced"
    return Scores(
        logprob_N,
        scored_N,
        facts | {"requests": len(prepared), "prefix_hit_tokens": hits, "tokens_other_than_stored": other},
    )
