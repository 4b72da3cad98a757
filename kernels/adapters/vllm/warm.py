"""Compiles, while an engine comes up, every form of samebits' kernels that a step may need outside a CUDA graph.

What the graphs hold is compiled when they are captured. The rest would be compiled at the first batch that needs it, in
the middle of a rollout: attention of steps with prompts, which is launched between graphs, normed_rotary into the cache
of steps longer than the longest graph, lm_head and logprob, whose number of rows is that of the sampled tokens, and
products over a long K, which no library computes for many rows.

Legend: B sequences, H query heads, G key heads, E head size, M rows, K inputs and N outputs of a linear, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from samebits.kernels.adapters.vllm.attention import split
from samebits.kernels.ops.attention.layout import SEGMENT
from samebits.kernels.ops.linear.op import direct, linear, linear_float32
from samebits.kernels.ops.linear.segments import segments as segments_of
from samebits.kernels.ops.logprob.op import direct as logprob


def warm(worker: Any) -> None:
    """Run each form once, on the worker's weights and its still empty cache, which stays as it is."""
    config, model = worker.vllm_config, worker.model_runner.get_model()
    most, given = config.scheduler_config.max_num_seqs, config.model_config
    wide = getattr(given, "head_dtype", given.dtype) == torch.float32 != given.dtype
    with torch.inference_mode():
        sampled(model.lm_head.weight.data, most, linear_float32 if wide else direct)
        for weight_NK, bias_N in long_weights(model):
            multiplied(weight_NK, bias_N, config.scheduler_config.max_num_batched_tokens)
        for module in model.modules():
            if getattr(module, "kv_cache", None) is not None and module.kv_cache.numel():
                impl = module.impl
                keys, values = split(module.kv_cache, impl.head_size)
                attended(keys, values, impl.num_heads, most, given.max_model_len, impl.scale)
                for owner in model.modules():
                    if getattr(owner, "attn", None) is module and hasattr(owner, "q_norm"):
                        written(owner, keys, values)
                break
    torch.cuda.synchronize()


def sampled(weight_VK: torch.Tensor, most: int, linear: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    """lm_head for 1 to `most` rows, and logprobs of its logits, also in float32 (where a temperature is applied)."""
    rows_MK = weight_VK.new_zeros((most, weight_VK.shape[1]))
    for count in range(1, most + 1):
        logits_MV = linear(rows_MK[:count], weight_VK)
        if count == 1:
            target_M = torch.zeros(1, dtype=torch.int64, device=weight_VK.device)
            logprob(logits_MV, target_M)
            logprob(logits_MV.float(), target_M)


def long_weights(model: torch.nn.Module) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Of linears whose K is in segments: a weight and bias of each form."""
    seen = set()
    for module in model.modules():
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if not isinstance(weight, torch.Tensor) or weight.dim() != 2 or segments_of(weight.shape[1]) == 1:
            continue
        form = (weight.shape, weight.dtype, bias is None)
        if hasattr(module, "quant_method") and form not in seen:
            seen.add(form)
            yield weight.data, None if bias is None else bias.data


def multiplied(weight_NK: torch.Tensor, bias_N: torch.Tensor | None, most: int) -> None:
    """A product for each row of linear's table up to `most` rows."""
    from samebits.kernels.ops.linear.dispatch import sizes

    N, K = weight_NK.shape
    x_MK = weight_NK.new_zeros((most, K))
    for count in sizes(N, K, most):
        linear(x_MK[:count], weight_NK, bias_N)


FORMS = (1, 257)
"""Tokens that normed_rotary is compiled for anew."""


def written(owner: Any, keys: torch.Tensor, values: torch.Tensor) -> None:
    """normed_rotary of a Qwen3Attention, in every form, into the first layer's pages: of tokens without a slot."""
    from samebits.kernels.ops.normed_rotary.op import body
    from samebits.kernels.ops.normed_rotary.pages import Pages

    for tokens in FORMS:
        qkv = keys.new_zeros((tokens, owner.q_size + 2 * owner.kv_size))
        parts = qkv.split([owner.q_size, owner.kv_size, owner.kv_size], -1)
        q_THE, k_TGE, v_TGE = (part.unflatten(-1, (-1, owner.head_dim)) for part in parts)
        at_T = torch.zeros(tokens, dtype=torch.int64, device=keys.device)
        body(
            q_THE,
            k_TGE,
            owner.q_norm.weight.data,
            owner.k_norm.weight.data,
            owner.q_norm.variance_epsilon,
            at_T,
            owner.rotary_emb.cos_sin_cache,
            Pages(v_TGE, keys, values, at_T - 1),
        )


def shapes(key_heads: int, most: int, longest: int, processors: int) -> list[tuple[int, int]]:
    """(sequences, keys of each) of decode batches that need every form of decode and merge that batches of 1 to `most`
    sequences of 1 to `longest` keys can."""
    from samebits.kernels.ops.attention.dispatch import decode_form

    found: dict[tuple[bool, int, int], tuple[int, int]] = {}
    for batch in range(1, most + 1):
        for segments in range(1, -(-longest // SEGMENT) + 1):
            splits, stages, steps = decode_form(batch, key_heads, segments, processors)
            # One program per sequence and key head needs no merge.
            form = (splits == 1, stages, 0 if splits == 1 else steps)
            found.setdefault(form, (batch, min(segments * SEGMENT, longest)))
    return list(found.values())


def attended(keys: torch.Tensor, values: torch.Tensor, heads: int, most: int, longest: int, scale: float) -> None:
    """Decode in every form, and one prefill, over the first page of the cache: keys, values [pages, slots, G, E]."""
    from samebits.kernels.ops.attention.dispatch import processors_of, run

    _, slots, key_heads, size = keys.shape

    def once(batch: int, tokens: int, length: int) -> None:
        q_BHE = keys.new_zeros((batch * tokens, heads, size))
        table = torch.zeros((batch, -(-length // slots)), dtype=torch.int32, device=keys.device)
        starts = torch.arange(batch + 1, dtype=torch.int32, device=keys.device) * tokens
        lengths = torch.full((batch,), length, dtype=torch.int32, device=keys.device)
        run(q_BHE, keys, values, table, starts, lengths, tokens, length, scale)

    for batch, length in shapes(key_heads, most, longest, processors_of(keys.device)):
        once(batch, 1, length)
    once(1, min(longest, SEGMENT), min(longest, SEGMENT))
