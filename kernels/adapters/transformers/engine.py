"""The patch engine for trainers: puts the operators of a table under a transformers model.

    from samebits.kernels.adapters.transformers.engine import patch

    patched = patch(model, "vllm")
    logits = model(input_ids=ids, position_ids=positions).logits  # packed: positions start at 0 in each sequence
    logprob = patched.logprob(logits[0, rows], tokens, temperature=1.0)

Legend: P positions, E head dim, M scored rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from samebits.kernels.adapters.tables.operators import Operator, RoleName, build
from samebits.kernels.adapters.transformers import checks, forwards
from samebits.kernels.adapters.transformers.roles import PLAYED, Family, Role, family_of


@dataclass(slots=True, frozen=True)
class Replaced:
    """One module whose forward was replaced."""

    path: str
    stood: str
    operators: tuple[str, ...]
    """Those it calls itself; a layer calls none, it only hands the residual on."""

    def __str__(self) -> str:
        return f"{self.path}: {self.stood} -> {', '.join(self.operators) or 'residual handed to the next norm'}"


@dataclass(slots=True)
class Patched:
    """A patched model. `undo` brings the stock model back."""

    model: Any
    operators: Mapping[RoleName, Operator]
    replaced: tuple[Replaced, ...]
    _run: forwards.Run
    _hooks: list[Any] = field(default_factory=list)

    def logprob(self, logits_MV: torch.Tensor, token_M: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
        """float32 logprob, in nats, of one token per row of logits. Differentiable.

        Args:
            logits_MV: what lm_head gave, in the model's dtype.
            temperature: 0 (greedy) and 1 leave the logits as they are.
        """
        out: torch.Tensor = self.operators["logprob"](logits_MV, token_M, temperature)
        return out

    def read_back(self) -> dict[str, tuple[str, int]]:
        """Role -> the operator that plays it and how often it really ran."""
        return {role: (operator.name, operator.calls) for role, operator in self.operators.items()}

    def checkpoint(self, on: bool = True) -> None:
        """Gradient checkpointing: each layer keeps its inputs alone and is computed again in the backward pass. It
        moves no bit of the forward pass; transformers' own switch is refused, as it loses the sequences."""
        self._run.checkpoint = on

    def undo(self) -> None:
        """Put every stock forward back."""
        for module in self.model.modules():
            if isinstance(vars(module).get("forward"), forwards.Replacement):
                del module.forward
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


def patch(
    model: Any, table: str | Mapping[str, str | Operator] = "vllm", *, families: tuple[Family, ...] = ()
) -> Patched:
    """Replace the forwards of a causal LM by the operators of a table.

    Everything is checked before anything is replaced. Weights stay where they are: optimizers,
    state dicts and names do not change.

    Args:
        model: a transformers causal LM with loaded weights.
        table: "vllm", "samebits", "stock", or a mapping role -> table name or Operator ("*" for the roles not named).
        families: role lists on top of the built-in ones.

    Raises:
        PatchError: anything in the model or its config that is not known, or is outside an operator's contract.
    """
    family = family_of(type(model).__name__, families)
    checks.config(model)
    paths = checks.coverage(model, family)
    asked = checks.facts(model, paths)
    needed: set[RoleName] = {name for role in paths.values() for name in PLAYED[role.kind]} | {"logprob"}
    operators = build(table, asked, needed)
    run = forwards.Run(operators, rotary_table(model, asked.positions, asked.dtype))
    modules = dict(model.named_modules())
    made = _forwards(run, modules, paths)
    replaced: list[Replaced] = []
    for path, forward in made.items():
        names = tuple(operators[name].name for name in PLAYED[paths[path].kind])
        replaced.append(Replaced(path, type(modules[path]).__name__, names))
        modules[path].forward = forwards.Replacement(run, path, forward)
    run.body = {path for path in made if paths[path].kind != "head"}
    hooks = [
        model.model.register_forward_pre_hook(forwards.enter(run, checks.arguments(model)), with_kwargs=True),
        model.model.register_forward_hook(forwards.leave(run), always_call=True),
    ]
    return Patched(model, operators, tuple(replaced), run, hooks)


def rotary_table(model: Any, positions: int, dtype: torch.dtype) -> torch.Tensor:
    """cos and sin of every position, side by side [P, E], from the model's own frequencies, as transformers does."""
    rotary = model.model.rotary_emb
    angle = torch.arange(positions, device=rotary.inv_freq.device).float()[:, None] * rotary.inv_freq.float()
    return torch.cat([angle.cos() * rotary.attention_scaling, angle.sin() * rotary.attention_scaling], -1).to(dtype)


def _forwards(run: forwards.Run, modules: Mapping[str, Any], paths: Mapping[str, Role]) -> dict[str, forwards.Forward]:
    makers = {
        "embedding": forwards.embedding,
        "layer": forwards.layer,
        "norm": forwards.norm,
        "attention": forwards.attention,
        "mlp": forwards.mlp,
        "router": forwards.router,
        "experts": forwards.experts,
        "head": forwards.head,
    }
    made: dict[str, forwards.Forward] = {}
    for path, role in paths.items():
        parent, _, child = path.rpartition(".")
        if role.kind == "linear":
            if child == role.merged[0]:
                merged = forwards.Merged(run, [modules[f"{parent}.{name}"] for name in role.merged])
                made |= {f"{parent}.{name}": merged.forward(place) for place, name in enumerate(role.merged)}
        elif role.kind != "kept":
            made[path] = makers[role.kind](run, modules[path])
    return made
