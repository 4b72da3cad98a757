"""vLLM's CUDA operators, written against the source of vLLM 0.26.0. Not run.

They are those of an engine with enforce_eager=True. With VLLM_BATCH_INVARIANT=1 in this process they are the
batch-invariant ones (Triton products, FlashAttention without splits); without it the products are cuBLAS's, whose bits
depend on the number of rows, so no trainer can follow the engine. Mixture of experts is refused.

Legend: see operators.py; W blocks of the paged KV cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from vllm import envs, ir
from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func, get_flash_attn_version

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.tables import backward, limits, stock
from samebits.kernels.adapters.tables.operators import Facts, Operator, Table, accept
from samebits.kernels.adapters.tables.pack import Pack
from samebits.kernels.adapters.tables.rotary_table import vllm_table
from samebits.kernels.adapters.tables.vllm_logprob import logprob_v1, logprob_v2
from samebits.kernels.adapters.tables.vllm_shared import Rotary, check_head_size, head, pages

BLOCK = 16
"""Tokens of a KV block: vLLM's default on CUDA."""


class Norm(torch.autograd.Function):
    """The C++ kernel, or the batch-invariant Triton one; backward through the float32 formula."""

    @staticmethod
    def forward(
        ctx: Any, x_TD: torch.Tensor, residual_TD: torch.Tensor | None, weight_D: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        ctx.save_for_backward(x_TD, residual_TD, weight_D)
        ctx.eps = eps
        x = x_TD.detach().clone(memory_format=torch.contiguous_format)
        residual = None if residual_TD is None else residual_TD.detach().clone(memory_format=torch.contiguous_format)
        if envs.VLLM_BATCH_INVARIANT:
            from vllm.model_executor.layers.batch_invariant import rms_norm_batch_invariant

            out = rms_norm_batch_invariant(x, weight_D.detach(), eps, residual=residual)
        elif residual is None:
            out = ir.ops.rms_norm.impls["vllm_c"].impl_fn(x, weight_D.detach(), eps)
        else:
            out = ir.ops.fused_add_rms_norm.impls["vllm_c"].impl_fn(x, residual, weight_D.detach(), eps)
        return (out, None) if residual is None else (out[0], out[1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        given = [x for x in ctx.saved_tensors if x is not None]
        with torch.enable_grad():
            wide = [x.detach().float().requires_grad_() for x in given]
            total = wide[0] if len(given) == 2 else wide[0] + wide[1]
            out = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + ctx.eps) * wide[-1]
        outputs = [out] if len(given) == 2 else [out, total]
        parts = torch.autograd.grad(outputs, wide, [grad.float() for grad in grads[: len(outputs)]])
        done = [part.to(x.dtype) for part, x in zip(parts, given, strict=True)]
        return (done[0], None, done[1], None) if len(given) == 2 else (*done, None)


class Attention(torch.autograd.Function):
    """FlashAttention over a paged cache, each sequence one prefill."""

    @staticmethod
    def forward(
        ctx: Any, q_THE: torch.Tensor, k_TGE: torch.Tensor, v_TGE: torch.Tensor, scale: float, pack: Pack
    ) -> torch.Tensor:
        q, k, v = (x.detach().contiguous() for x in (q_THE, k_TGE, v_TGE))
        starts, lengths, table_SW, slot_T = pages(pack, BLOCK, q.device)
        caches = k.new_zeros(2, int(table_SW.max()) + 1, BLOCK, *k.shape[1:])
        for cache, x in zip(caches, (k, v), strict=True):
            cache.view(-1, *x.shape[1:])[slot_T] = x
        longest = max(pack.lengths)
        out = torch.empty_like(q)
        flash_attn_varlen_func(
            q=q,
            k=caches[0],
            v=caches[1],
            out=out,
            cu_seqlens_q=starts,
            max_seqlen_q=longest,
            seqused_k=lengths,
            max_seqlen_k=longest,
            softmax_scale=scale,
            causal=True,
            block_table=table_SW,
            fa_version=get_flash_attn_version(head_size=q.shape[-1]),
            num_splits=1 if envs.VLLM_BATCH_INVARIANT else 0,
        )
        ctx.save_for_backward(q, k, v)
        ctx.scale, ctx.pack = scale, pack
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, v = ctx.saved_tensors
        return *backward.attention(grads[0], q, k, v, ctx.scale, ctx.pack), None, None


class Linear(torch.autograd.Function):
    """cuBLAS through torch, or vLLM's batch-invariant Triton product."""

    @staticmethod
    def forward(ctx: Any, x_TK: torch.Tensor, weight_NK: torch.Tensor, bias_N: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x_TK, weight_NK)
        ctx.bias = bias_N is not None
        if not envs.VLLM_BATCH_INVARIANT:
            return F.linear(x_TK, weight_NK, bias_N)
        from vllm.model_executor.layers.batch_invariant import linear_batch_invariant

        out: torch.Tensor = linear_batch_invariant(
            x_TK.detach(), weight_NK.detach(), None if bias_N is None else bias_N.detach()
        )
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x_TK, weight_NK = ctx.saved_tensors
        return backward.linear(grads[0], x_TK, weight_NK, ctx.bias)


linear: Callable[..., torch.Tensor] = Linear.apply


class Activation(torch.autograd.Function):
    """silu_and_mul on gate and up side by side."""

    @staticmethod
    def forward(ctx: Any, gate_TI: torch.Tensor, up_TI: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate_TI, up_TI)
        out = torch.empty_like(gate_TI, memory_format=torch.contiguous_format)
        torch.ops._C.silu_and_mul(out, torch.cat([gate_TI.detach(), up_TI.detach()], -1))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        with torch.enable_grad():
            gate, up = (x.detach().float().requires_grad_() for x in ctx.saved_tensors)
            out = F.silu(gate) * up
        return tuple(part.to(grads[0].dtype) for part in torch.autograd.grad(out, (gate, up), grads[0].float()))


def rotary(facts: Facts) -> Callable[..., tuple[torch.Tensor, ...]]:
    """vLLM's kernel on vLLM's table, which it computes on the GPU: that of the trainer has other bits."""
    own_PE = vllm_table(facts.rope_theta, facts.head_dim, facts.positions, facts.dtype, facts.device)

    turn: Callable[..., tuple[torch.Tensor, ...]] = Rotary.apply
    return lambda q_THE, k_TGE, _, pack: turn(q_THE, k_TGE, own_PE, pack)


def check(facts: Facts) -> None:
    """The contract of the whole set."""
    limits.check("vllm", "cuda", facts.dtype, experts=bool(facts.experts))
    if facts.head_dim % 8 or facts.head_dim > 256:
        raise PatchError(f"head size {facts.head_dim}", "is not one of FlashAttention", "use a multiple of 8 up to 256")
    check_head_size(facts.head_dim, envs.VLLM_BATCH_INVARIANT)
    if not facts.rope_theta:
        raise PatchError("the model's config", "names no rope_theta", "add rope_parameters to it")


def table(facts: Facts) -> Table:
    """Every role as an eager engine plays it; the logprob is Model Runner V2's unless VLLM_USE_V2_MODEL_RUNNER=0."""
    mode = "batch invariant" if envs.VLLM_BATCH_INVARIANT else "eager"
    second = os.environ.get("VLLM_USE_V2_MODEL_RUNNER") != "0"
    plain = stock.table(facts)
    made = [
        Operator("embedding", "vllm: torch embedding", plain["embedding"].run, check),
        Operator("norm", f"vllm rms_norm, fused_add_rms_norm ({mode})", Norm.apply, check),
        Operator("rotary", "vllm._custom_ops.rotary_embedding, table of the GPU", rotary(facts), check),
        Operator("attention", f"vllm flash_attn_varlen_func ({mode})", Attention.apply, check),
        Operator("linear", f"vllm linear ({mode})", linear, check),
        Operator("head", f"vllm linear ({mode}), padded vocabulary", partial(head, linear), check),
        Operator("activation", "torch.ops._C.silu_and_mul", Activation.apply, check),
        Operator("router", "none", plain["router"].run, check),
        Operator("experts", "none", plain["experts"].run, check),
        Operator(
            "logprob",
            f"vllm sampler of {'Model Runner V2' if second else 'V1'}",
            logprob_v2 if second else logprob_v1,
            accept,
        ),
    ]
    return {operator.role: operator for operator in made}
