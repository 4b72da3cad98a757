"""Token by token through the model's own key-value cache: how a transformers model serves as rollout side.

Legend: V vocabulary, N sampled tokens in all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from samebits.tools.capture.rows import PassRows
from samebits.tools.sides.protocol import RolloutData, Scores, Sequence
from samebits.tools.sides.scoring.logprob import Processing, keep_top
from samebits.tools.sides.vllm.workload import prompts

if TYPE_CHECKING:
    from collections.abc import Callable

    from samebits.tools.schema.experiment import Workload
    from samebits.tools.sides.transformers.side import TransformersSide


def _run(side: TransformersSide, index: int, prompt: list[int], count: int, choose: Callable[[int, torch.Tensor], int]) -> list[tuple[int, torch.Tensor]]:
    """Feed a prompt, then `count - 1` chosen tokens; returns the choices, each with its logits [1, V]."""
    cache: Any = None
    tokens, start, out = list(prompt), 0, []
    for k in range(count):
        ids = torch.tensor([tokens[start:]], device=side.device)
        positions = torch.arange(start, len(tokens), device=side.device)[None]
        side._rows = PassRows(
            torch.full((ids.shape[1],), index, dtype=torch.int32), positions[0].to("cpu", torch.int32), (1, ids.shape[1]),
            torch.tensor([ids.shape[1] - 1]),
        )
        extra = {"logits_to_keep": 1} if side._keeps_rows else {}
        answer = side.module(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, **extra)
        cache, start = answer.past_key_values, len(tokens)
        logits_1V = answer.logits[0, -1:]
        token = choose(k, logits_1V)
        out.append((token, side.logprobs(logits_1V, torch.tensor([token], device=side.device), side.processing)))
        tokens.append(token)
    side._rows = None
    return out


def special_ids(config: Any) -> set[int]:
    """Begin, end and padding token ids of a model's config."""
    found = (getattr(config, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id"))
    return {token for value in found if value is not None for token in (value if isinstance(value, list) else [value])}


def generate(side: TransformersSide, workload: Workload) -> RolloutData:
    """Sample a rollout; every sequence has its own seed, so that company changes nothing."""
    asked = prompts(workload, side.folder, side.vocabulary or 2, special_ids(side.module.config))
    mode = side.config.logprobs if side.role == "rollout" else "processed"  # type: ignore[union-attr]
    data = RolloutData(
        [Sequence(prompt, [0] * workload.new_tokens) for prompt in asked], torch.empty(0), torch.empty(0), workload.temperature,
        workload.top_p, workload.top_k, mode,
    )
    side.check(data)
    side.processing = Processing.of(data)
    draw = Processing.of(RolloutData([], torch.empty(0), torch.empty(0), workload.temperature, workload.top_p, workload.top_k))
    sequences, logprobs = [], []
    with torch.no_grad():
        for i, prompt in enumerate(asked):
            generator = torch.Generator().manual_seed(workload.seed * 100_003 + i)

            def choose(_: int, logits_1V: torch.Tensor, generator: torch.Generator = generator) -> int:
                if workload.temperature < 1e-5:
                    return int(logits_1V.argmax())
                cut_1V = keep_top(logits_1V.float() / draw.temperature, draw.top_k, draw.top_p)
                return int(torch.multinomial(cut_1V.softmax(-1).cpu(), 1, generator=generator))

            sampled = _run(side, i, prompt, workload.new_tokens, choose)
            sequences.append(Sequence(prompt, [token for token, _ in sampled]))
            logprobs.extend(value for _, value in sampled)
    logprob_N = torch.cat(logprobs).float().cpu()
    data.sequences, data.logprob_N, data.valid_N = sequences, logprob_N, torch.ones(len(logprob_N), dtype=torch.bool)
    return data


def score_decode(side: TransformersSide, data: RolloutData) -> Scores:
    """Teacher-forced: the rollout's own tokens are fed one by one."""
    side.processing = Processing.of(data)
    logprobs = []
    with torch.no_grad():
        for i, sequence in enumerate(data.sequences):
            run = _run(side, i, sequence.prompt, len(sequence.sampled), lambda k, _, s=sequence: s.sampled[k])  # type: ignore[misc]
            logprobs.extend(value for _, value in run)
    logprob_N = torch.cat(logprobs).float().cpu() if logprobs else torch.empty(0)
    return Scores(logprob_N, torch.ones(len(logprob_N), dtype=torch.bool), {"largest_batch": 1, "path": "decode"})
