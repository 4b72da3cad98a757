"""Roles of a transformer's operators, what each takes and gives, and tables that say which operator plays a role.

Legend: T token rows, D hidden, K and N inputs and outputs of a linear, H query heads, G key/value heads, E head dim,
I intermediate, X experts, R experts per token, P positions, V vocabulary, M scored rows.

| role | call | gives |
|---|---|---|
| embedding | (ids, weight_VD, padding id or None) | [*ids, D] |
| norm | (x_TD, residual_TD or None, weight_D, eps) | (y_TD, sum_TD or None): the norm of x, or of x + residual |
| rotary | (q_THE, k_TGE, table_PE, pack) | (q_THE, k_TGE) |
| attention | (q_THE, k_TGE, v_TGE, scale, pack) | out_THE: causal, inside each sequence |
| linear | (x_TK, weight_NK, bias_N or None) | [T, N] |
| head | the same, for lm_head | [M, V] |
| activation | (gate_TI, up_TI) | silu(gate) * up |
| router | (logits_TX, top_k, renormalize) | (weight_TR float32, id_TR int32) |
| experts | (x_TD, gate_up, down, weight_TR, id_TR); gate_up [X, 2I, D], down [X, D, I] | [T, D] |
| logprob | (logits_MV, token_M, temperature) | [M] float32, nats |

`table_PE` holds cos in its first half and sin in its second, in the model's dtype, one row per position.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from samebits.kernels.adapters.errors import PatchError

if TYPE_CHECKING:
    import torch

RoleName = Literal[
    "embedding", "norm", "rotary", "attention", "linear", "head", "activation", "router", "experts", "logprob"
]
ROLES: tuple[RoleName, ...] = get_args(RoleName)


@dataclass(slots=True, frozen=True)
class Facts:
    """What a model asks of its operators."""

    dtype: torch.dtype
    device: torch.device
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    positions: int
    """Rows of the rotary table: the longest sequence."""
    bias: bool
    rope_theta: float = 0.0
    """Base of the rotary frequencies; 0: the config names none."""
    experts: int = 0
    expert_width: int = 0


def accept(facts: Facts) -> None:
    """Every model is in the contract."""


@dataclass(slots=True)
class Operator:
    """One way to play a role. `calls` counts how often it ran."""

    role: RoleName
    name: str
    """For the read-back: which kernel or formula this is."""
    run: Callable[..., Any]
    check: Callable[[Facts], None] = accept
    """Raises PatchError for what is outside its contract."""
    calls: int = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.run(*args)


Table = Mapping[RoleName, Operator]

TABLES = {
    "stock": "samebits.kernels.adapters.tables.stock",
    "vllm": "samebits.kernels.adapters.tables.vllm_ops",
    "samebits": "samebits.kernels.adapters.tables.samebits_ops",
}
"""Each module has `table(facts) -> Table`, freshly made, with every role."""


def build(table: str | Mapping[str, str | Operator], facts: Facts, needed: set[RoleName]) -> dict[RoleName, Operator]:
    """The operators for a model.

    Args:
        table: a name of TABLES for all roles, or a mapping role -> name or operator, in which the
            key "*" stands for the roles it does not name.

    Raises:
        PatchError: a role, a table or a package is not known, or the model is outside an operator's contract.
    """
    choice: dict[str, str | Operator] = {"*": table} if isinstance(table, str) else dict(table)
    for role in choice:
        if role != "*" and role not in ROLES:
            raise PatchError(f"role {role!r}", "not known", f"use one of {', '.join(ROLES)}, or * for the rest")
    made: dict[str, Table] = {}
    chosen: dict[RoleName, Operator] = {}
    for role in ROLES:
        if role not in needed:
            continue
        pick = choice.get(role, choice.get("*"))
        if pick is None:
            raise PatchError(
                f"role {role!r}", "has no operator in the table given", 'name one, or give the rest with the key "*"'
            )
        if isinstance(pick, str):
            if pick not in made:
                made[pick] = _load(pick, facts)
            pick = made[pick][role]
        if pick.role != role:
            raise PatchError(
                f"operator {pick.name}", f"plays the role {pick.role!r}, not {role!r}", "put it under its own role"
            )
        pick.check(facts)
        chosen[role] = pick
    return chosen


def _load(name: str, facts: Facts) -> Table:
    if name not in TABLES:
        raise PatchError(f"table {name!r}", "not known", f"use one of {', '.join(TABLES)}")
    try:
        module = importlib.import_module(TABLES[name])
    except ImportError as error:
        raise PatchError(
            f"table {name!r}", f"cannot be imported ({error})", "see docs/exact-zero.md for the tables there are"
        ) from error
    made: Table = module.table(facts)
    return made
