"""The bits of varlen attention: those of paged attention (kernels/ops/attention) over a cache with one slot per page.

T tokens, H query heads, G key heads, D head size.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from samebits.kernels.ops.attention import contract as paged
from samebits.kernels.ops.check import require

NAME = "attention_varlen"


def check(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> None:
    """Refuse what the paged operator's own check cannot see."""
    require(
        q.dim() == k.dim() == v.dim() == 3,
        NAME,
        "q must be [tokens, heads, head size], k and v [tokens, key heads, head size]",
    )
    require(
        q.shape[0] == k.shape[0] == v.shape[0], NAME, f"q, k, v have {q.shape[0]}, {k.shape[0]}, {v.shape[0]} tokens"
    )
    require(
        cu_seqlens.dim() == 1 and cu_seqlens.shape[0] >= 1,
        NAME,
        f"cu_seqlens has shape {tuple(cu_seqlens.shape)}; it must be [B + 1]",
    )


def table_of(cu_seqlens: Tensor, max_seq_len: int) -> Tensor:
    """[B, max_seq_len] int32: the token of each position; places past a sequence repeat its last token."""
    position = torch.arange(max(max_seq_len, 1), device=cu_seqlens.device, dtype=torch.int32)
    last = (cu_seqlens[1:] - 1).clamp_min(0)
    return torch.minimum(cu_seqlens[:-1, None] + position, last[:, None]).int()


def contract(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seq_len: int, scale: float) -> Tensor:
    """Arguments of op.attention_varlen: [T, H, D] in the dtype of q."""
    check(q, k, v, cu_seqlens)
    lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).int()
    table = table_of(cu_seqlens, max_seq_len)
    return paged.contract(q, k[:, None], v[:, None], table, cu_seqlens, lengths, max_seq_len, max_seq_len, scale)


def contract_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seq_len: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v: plain PyTorch in float32, each sequence recomputed; the same from run to run."""
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    bounds = cu_seqlens.tolist()
    for a, b in pairwise(bounds):
        if a < b:
            found = _sequence_backward(grad[a:b].float(), q[a:b].float(), k[a:b].float(), v[a:b].float(), scale)
            for whole, part in zip((dq, dk, dv), found, strict=True):
                whole[a:b] = part.to(whole.dtype)
    return dq, dk, dv


def _sequence_backward(
    grad_THD: Tensor, q_THD: Tensor, k_TGD: Tensor, v_TGD: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The textbook formulas for one sequence, query t against key n."""
    tokens, key_heads, size = k_TGD.shape
    group = q_THD.shape[1] // key_heads
    q, k, v, grad = (
        t.transpose(0, 1)
        for t in (q_THD, k_TGD.repeat_interleave(group, 1), v_TGD.repeat_interleave(group, 1), grad_THD)
    )
    hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
    p_Htn = (q @ k.mT * scale).masked_fill(hidden, float("-inf")).softmax(-1)
    dp_Htn = grad @ v.mT
    ds_Htn = p_Htn * (dp_Htn - (dp_Htn * p_Htn).sum(-1, keepdim=True)) * scale
    dk, dv = ((m.mT @ t).reshape(key_heads, group, tokens, size).sum(1) for m, t in ((ds_Htn, q), (p_Htn, grad)))
    return (ds_Htn @ k).transpose(0, 1), dk.transpose(0, 1), dv.transpose(0, 1)
