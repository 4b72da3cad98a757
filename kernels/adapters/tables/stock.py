"""The table "stock": every role as transformers computes it, in plain PyTorch.

With it the patched model gives the bits of the unpatched one, so the engine itself changes nothing; and one role at a
time can be turned back to it.

Legend: see operators.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from samebits.kernels.adapters.tables.operators import Facts, Operator, RoleName, Table
from samebits.kernels.adapters.tables.pack import Pack


def norm(
    x_TD: torch.Tensor, residual_TD: torch.Tensor | None, weight_D: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """RMS norm in float32, of the sum rounded to the model's dtype."""
    total_TD = x_TD if residual_TD is None else residual_TD + x_TD
    wide_TD = total_TD.float()
    wide_TD = wide_TD * torch.rsqrt(wide_TD.pow(2).mean(-1, keepdim=True) + eps)
    return weight_D * wide_TD.to(x_TD.dtype), None if residual_TD is None else total_TD


def rotary(
    q_THE: torch.Tensor, k_TGE: torch.Tensor, table_PE: torch.Tensor, pack: Pack
) -> tuple[torch.Tensor, torch.Tensor]:
    """x * cos + rotate_half(x) * sin, each product rounded to the model's dtype."""
    cos_TE, sin_TE = (torch.cat([half, half], -1)[:, None] for half in table_PE[pack.position_T].chunk(2, -1))

    def turn(x: torch.Tensor) -> torch.Tensor:
        low, high = x.chunk(2, -1)
        return x * cos_TE + torch.cat([-high, low], -1) * sin_TE

    return turn(q_THE), turn(k_TGE)


def attention(q_THE: torch.Tensor, k_TGE: torch.Tensor, v_TGE: torch.Tensor, scale: float, pack: Pack) -> torch.Tensor:
    """PyTorch's scaled_dot_product_attention, one sequence at a time."""
    out: list[torch.Tensor] = []
    for first, last in pack.spans:
        q, k, v = (x[first:last].transpose(0, 1)[None] for x in (q_THE, k_TGE, v_TGE))
        one = F.scaled_dot_product_attention(
            q, k, v, is_causal=last - first > 1, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        out.append(one[0].transpose(0, 1))
    return torch.cat(out)


def activation(gate_TI: torch.Tensor, up_TI: torch.Tensor) -> torch.Tensor:
    """SwiGLU."""
    return F.silu(gate_TI) * up_TI


def router(logits_TX: torch.Tensor, top_k: int, renormalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax over all experts in float32, the largest k, renormalised, rounded to the model's dtype."""
    chance_TX = torch.softmax(logits_TX, -1, dtype=torch.float32)
    weight_TR, id_TR = torch.topk(chance_TX, top_k, dim=-1)
    if renormalize:
        weight_TR = weight_TR / weight_TR.sum(-1, keepdim=True)
    return weight_TR.to(logits_TX.dtype).float(), id_TR.to(torch.int32)


def experts(
    x_TD: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, weight_TR: torch.Tensor, id_TR: torch.Tensor
) -> torch.Tensor:
    """Expert after expert, added up in the model's dtype, as transformers' eager experts do."""
    out_TD = torch.zeros_like(x_TD)
    narrow_TR = weight_TR.to(x_TD.dtype)
    for expert in torch.unique(id_TR).tolist():
        # transformers walks slot by slot: rows of the first choice come before rows of the second.
        slot, row = torch.where((id_TR == expert).t())
        gate, up = F.linear(x_TD[row], gate_up[expert]).chunk(2, -1)
        one = F.linear(F.silu(gate) * up, down[expert]) * narrow_TR[row, slot, None]
        out_TD = out_TD.index_add(0, row, one)
    return out_TD


def logprob(logits_MV: torch.Tensor, token_M: torch.Tensor, temperature: float) -> torch.Tensor:
    """logits[token] - logsumexp(logits) in float32, as TRL and verl compute it."""
    wide_MV = logits_MV.float()
    if temperature not in (0.0, 1.0):
        wide_MV = wide_MV / temperature
    chosen_M = wide_MV.gather(1, token_M[:, None])[:, 0]
    return chosen_M - torch.logsumexp(wide_MV, -1)


def table(facts: Facts) -> Table:
    """Every role as transformers computes it."""
    runs: dict[RoleName, Callable[..., Any]] = {
        "embedding": F.embedding,
        "norm": norm,
        "rotary": rotary,
        "attention": attention,
        "linear": F.linear,
        "head": F.linear,
        "activation": activation,
        "router": router,
        "experts": experts,
        "logprob": logprob,
    }
    names: dict[RoleName, str] = {
        "embedding": "torch embedding",
        "norm": "transformers RMSNorm",
        "rotary": "transformers rotary",
        "attention": "torch SDPA",
        "linear": "torch linear",
        "head": "torch linear",
        "activation": "torch silu * up",
        "router": "transformers top-k router",
        "experts": "transformers eager experts",
        "logprob": "logits - logsumexp",
    }
    return {role: Operator(role, f"stock: {name}", runs[role]) for role, name in names.items()}
