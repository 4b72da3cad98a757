"""The logprob of a sampled token as vLLM's samplers on CUDA compute it, written against vLLM 0.26.0. Not run.

Legend: M scored rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm import envs


class TokenLogprob(torch.autograd.Function):
    """V1: float32 log_softmax, its batch-invariant one under VLLM_BATCH_INVARIANT (there the engine's process has it in
    place of torch's). Model Runner V2: one Triton program per row, logit - max - log(sum), after a kernel that divides
    by the temperature: Triton's division of float32 is not torch's.
    """

    @staticmethod
    def forward(
        ctx: Any, logits_MV: torch.Tensor, token_M: torch.Tensor, temperature: float, second: bool
    ) -> torch.Tensor:
        wide_MV = logits_MV.detach().float()
        ctx.temperature = 1.0 if temperature in (0.0, 1.0) else temperature
        if ctx.temperature != 1.0:
            wide_MV = _divided_v2(wide_MV, temperature) if second else _divided_v1(wide_MV, temperature)
        ctx.save_for_backward(wide_MV, token_M)
        ctx.dtype = logits_MV.dtype
        at_M1 = token_M[:, None]
        if second:
            from vllm.v1.worker.gpu.sample.logprob import compute_token_logprobs

            out: torch.Tensor = compute_token_logprobs(wide_MV, at_M1)[:, 0]
            return out
        return _log_softmax(wide_MV).gather(1, at_M1)[:, 0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        wide_MV, token_M = ctx.saved_tensors
        part_MV = -wide_MV.softmax(-1)
        part_MV.scatter_add_(1, token_M[:, None], torch.ones_like(part_MV[:, :1]))
        return (part_MV * (grads[0][:, None] / ctx.temperature)).to(ctx.dtype), None, None, None


def _log_softmax(wide_MV: torch.Tensor) -> torch.Tensor:
    if envs.VLLM_BATCH_INVARIANT:
        from vllm.model_executor.layers.batch_invariant import log_softmax

        out: torch.Tensor = log_softmax(wide_MV, dim=-1)
        return out
    return wide_MV.log_softmax(-1)


def _divided_v1(wide_MV: torch.Tensor, temperature: float) -> torch.Tensor:
    """By a tensor: CUDA divides by a number as a product with its reciprocal."""
    return wide_MV / torch.full_like(wide_MV[:, :1], temperature)


def _divided_v2(wide_MV: torch.Tensor, temperature: float) -> torch.Tensor:
    from vllm.v1.worker.gpu.sample.gumbel import apply_temperature

    divided_MV = wide_MV.clone(memory_format=torch.contiguous_format)
    row_M = torch.arange(len(divided_MV), dtype=torch.int32, device=divided_MV.device)
    apply_temperature(divided_MV, row_M, torch.full_like(divided_MV[:, 0], temperature))
    return divided_MV


token_logprob: Callable[..., torch.Tensor] = TokenLogprob.apply


def logprob_v1(logits_MV: torch.Tensor, token_M: torch.Tensor, temperature: float) -> torch.Tensor:
    """The V1 runner's sampler."""
    return token_logprob(logits_MV, token_M, temperature, False)


def logprob_v2(logits_MV: torch.Tensor, token_M: torch.Tensor, temperature: float) -> torch.Tensor:
    """Model Runner V2's sampler."""
    return token_logprob(logits_MV, token_M, temperature, True)
