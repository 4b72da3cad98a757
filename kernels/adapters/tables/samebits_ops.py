"""The table "samebits": samebits' own operators (kernels/ops), the same that its adapter puts into vLLM.

Legend: see operators.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.tables import limits
from samebits.kernels.adapters.tables.operators import Facts, Operator, RoleName, Table, accept
from samebits.kernels.adapters.tables.pack import Pack
from samebits.kernels.adapters.tables.rotary_table import rotary_table
from samebits.kernels.ops.attention.layout import uncovered
from samebits.kernels.ops.attention_varlen.op import attention_varlen
from samebits.kernels.ops.embedding import op as embedding_op
from samebits.kernels.ops.linear.op import linear, linear_float32
from samebits.kernels.ops.logprob import op as logprob_op
from samebits.kernels.ops.rms_norm.op import rms_norm
from samebits.kernels.ops.rotary import op as rotary_op
from samebits.kernels.ops.silu_mul.op import silu_mul

Operation = Callable[..., Any]
"""An operator of kernels/ops, or what is called in its place."""


def norm(
    operator: Operation, x_TD: torch.Tensor, residual_TD: torch.Tensor | None, weight_D: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The norm of x, or of the float32 sum of x and the residual."""
    if residual_TD is None:
        return operator(x_TD, weight_D, eps), None
    y_TD, sum_TD = operator(x_TD, weight_D, eps, residual_TD)
    return y_TD, sum_TD


def attention(
    operator: Operation, q_THE: torch.Tensor, k_TGE: torch.Tensor, v_TGE: torch.Tensor, scale: float, pack: Pack
) -> torch.Tensor:
    """The arithmetic of the paged operator over whole sequences."""
    starts = pack.plans.get("samebits.cu_seqlens")
    if starts is None:
        starts = pack.plans["samebits.cu_seqlens"] = pack.cu_seqlens(q_THE.device)
    out: torch.Tensor = operator(q_THE, k_TGE, v_TGE, starts, max(pack.lengths), scale)
    return out


def embedding(operator: Operation, ids: torch.Tensor, weight_VD: torch.Tensor, padding: int | None) -> torch.Tensor:
    """Rows of the table; the padding row gets no gradient, as in torch."""
    out: torch.Tensor = operator(ids, weight_VD)
    return out if padding is None else torch.where((ids == padding)[..., None], out.detach(), out)


def logprob(logits_MV: torch.Tensor, token_M: torch.Tensor, temperature: float) -> torch.Tensor:
    """float32, nats; temperature 0 leaves the logits as they are."""
    return logprob_op.logprob(logits_MV, token_M, temperature if temperature else None)


def rotary(
    operator: Operation, theta: float, q_THE: torch.Tensor, k_TGE: torch.Tensor, table_PE: torch.Tensor, pack: Pack
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rotation by samebits' own table: the trainer's and the engine's differ in last bits."""
    positions, width = table_PE.shape
    own_PE = rotary_table(theta, width, positions, table_PE.dtype, table_PE.device)
    q, k = operator(q_THE, k_TGE, pack.position_T, own_PE)
    return q, k


def refused(*_: Any) -> Any:
    """Stands for the roles without an operator; `check` refuses the models that would call it."""
    raise AssertionError("a role without an operator was called")


def check(facts: Facts) -> None:
    """What the operators do not cover.

    Raises:
        PatchError: naming the first such thing.
    """
    limits.check("samebits", facts.device.type, facts.dtype, experts=bool(facts.experts))
    if why := uncovered(facts.head_dim, facts.heads, facts.kv_heads):
        raise PatchError("attention", why, "use a model whose heads it covers, or another table")
    if facts.rope_theta <= 0:
        raise PatchError("config.rope_parameters", "name no rope_theta", "only the default rotary embedding is covered")


def table(facts: Facts, instead: Mapping[str, Operation] | None = None) -> Table:
    """Every role of a dense decoder.

    Args:
        instead: name of an operator of kernels/registry.py -> what is called in its place.
    """
    own: dict[str, Operation] = {
        "embedding": embedding_op.embedding,
        "rms_norm": rms_norm,
        "rotary": rotary_op.rotary,
        "attention_varlen": attention_varlen,
        "linear": linear,
        "silu_mul": silu_mul,
    }
    use = own | dict(instead or {})
    runs: dict[RoleName, tuple[str, Callable[..., Any]]] = {
        "embedding": ("samebits::embedding", partial(embedding, use["embedding"])),
        "norm": ("samebits::rms_norm", partial(norm, use["rms_norm"])),
        "rotary": ("samebits::rotary", partial(rotary, use["rotary"], facts.rope_theta)),
        "attention": ("samebits::attention_varlen", partial(attention, use["attention_varlen"])),
        "linear": ("samebits::linear", use["linear"]),
        "head": ("samebits::linear", use["linear"]),
        "activation": ("samebits::silu_mul", use["silu_mul"]),
        "router": ("none", refused),
        "experts": ("none", refused),
        "logprob": ("samebits::logprob", logprob),
    }
    return {
        role: Operator(role, name, run, accept if role == "logprob" else check) for role, (name, run) in runs.items()
    }


def float32_head() -> Operator:
    """An lm_head whose logits stay float32, for an engine with head_dtype float32.

    patch(model, {"*": "samebits", "head": float32_head()})
    """
    return Operator("head", "samebits::linear_float32", linear_float32, check)
