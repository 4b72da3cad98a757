"""What vLLM's CPU and CUDA engines do alike.

Legend: see operators.py; W blocks of the paged KV cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from vllm import _custom_ops as ops

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.tables import backward
from samebits.kernels.adapters.tables.pack import Pack

VOCABULARY_MULTIPLE = 64
"""vLLM pads lm_head to this many rows."""


class Rotary(torch.autograd.Function):
    """The C++ or CUDA kernel works in place on flat heads."""

    @staticmethod
    def forward(
        ctx: Any, q_THE: torch.Tensor, k_TGE: torch.Tensor, table_PE: torch.Tensor, pack: Pack
    ) -> tuple[torch.Tensor, ...]:
        q, k = (x.detach().clone(memory_format=torch.contiguous_format).flatten(1) for x in (q_THE, k_TGE))
        ops.rotary_embedding(pack.position_T, q, k, q_THE.shape[-1], table_PE, True)
        ctx.save_for_backward(table_PE)
        ctx.pack = pack
        return q.view(q_THE.shape), k.view(k_TGE.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (table_PE,) = ctx.saved_tensors
        return backward.rotary(grads[0], table_PE, ctx.pack), backward.rotary(grads[1], table_PE, ctx.pack), None, None


def pages(pack: Pack, block: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """See Pack.pages; made once per pack."""
    name = f"vllm.pages.{block}.{device}"
    plan = pack.plans.get(name)
    if plan is None:
        plan = pack.plans[name] = tuple(x.to(device) for x in pack.pages(block))
    return plan


def head(
    linear: Callable[..., torch.Tensor], x_TK: torch.Tensor, weight_VK: torch.Tensor, bias_V: torch.Tensor | None
) -> torch.Tensor:
    """lm_head over the padded vocabulary, the padding cut off."""
    size = weight_VK.shape[0]
    missing = -size % VOCABULARY_MULTIPLE
    if missing:
        weight_VK = F.pad(weight_VK, (0, 0, 0, missing))
        bias_V = None if bias_V is None else F.pad(bias_V, (0, missing))
    out = linear(x_TK, weight_VK, bias_V)
    return out[:, :size] if missing else out


def check_head_size(size: int, batch_invariant: bool) -> None:
    """FlashAttention 3 with one split, as the batch-invariant mode runs it: beside a growing prefill a decode row of
    head size 64 got other bits on an H200, one of head size 128 did not (docs/results/kernels.md).

    Raises:
        PatchError: a head size at which no trainer can follow the engine.
    """
    if batch_invariant and size < 128:
        raise PatchError(
            f"head size {size}",
            "FlashAttention with one split gives a row other bits beside a longer one, so no trainer can follow it",
            'use the table "samebits"',
        )


def scaled(logits_MV: torch.Tensor, temperature: float) -> torch.Tensor:
    """float32 logits over the temperature. By a tensor: CUDA divides by a number as a product with its reciprocal."""
    wide_MV = logits_MV.float()
    if temperature in (0.0, 1.0):
        return wide_MV
    return wide_MV / torch.full((wide_MV.shape[0], 1), temperature, dtype=torch.float32, device=wide_MV.device)


def logprob(logits_MV: torch.Tensor, token_M: torch.Tensor, temperature: float) -> torch.Tensor:
    """The V1 runner's sampler: float32 log_softmax."""
    return scaled(logits_MV, temperature).log_softmax(dim=-1, dtype=torch.float32).gather(1, token_M[:, None])[:, 0]
