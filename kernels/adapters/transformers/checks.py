"""What must hold of a model before it is patched."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.tables.operators import Facts
from samebits.kernels.adapters.transformers.roles import Family, Role

ASKED: dict[str, tuple[Any, str]] = {
    "attention_dropout": (0.0, "set it to 0: dropout makes trainer and engine differ"),
    "hidden_act": ("silu", "only SwiGLU is known"),
    "pretraining_tp": (1, "set it to 1"),
    "use_sliding_window": (False, "full attention only"),
    "output_hidden_states": (False, "take taps with forward hooks instead"),
    "output_attentions": (False, "the attention kernels give no weights"),
    "output_router_logits": (False, "take taps with forward hooks instead"),
    "quantization_config": (None, "load the unquantised weights"),
}
"""Setting of the config -> the only value known, and what to do about another."""


def config(model: Any) -> None:
    """Refuse settings that no operator here follows.

    Raises:
        PatchError: naming the setting.
    """
    settings = model.config
    for name, (expected, step) in ASKED.items():
        found = getattr(settings, name, expected)
        if found != expected and not (name == "use_sliding_window" and not found):
            raise PatchError(f"config.{name} = {found!r}", f"is not supported, only {expected!r}", step)
    rope = getattr(settings, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise PatchError(
            f"config.rope_parameters = {rope}", "is not supported", "only the default rotary embedding was run"
        )
    if any(kind != "full_attention" for kind in getattr(settings, "layer_types", None) or ()):
        raise PatchError("config.layer_types", "holds sliding-window or other layers", "full attention only")
    if getattr(model, "is_gradient_checkpointing", False):
        raise PatchError(
            "gradient checkpointing",
            "is not supported by the patched model in this form",
            "turn it off and call checkpoint() of what patched the model",
        )


def coverage(model: torch.nn.Module, family: Family) -> dict[str, Role]:
    """The role of each module path.

    Raises:
        PatchError: a module in no role, of another class, or replaced already; a role that no module plays.
    """
    found: dict[str, Role] = {}
    for path, module in model.named_modules():
        parent, _, child = path.rpartition(".")
        stands = type(module).__name__
        role = next(
            (
                role
                for role in family.roles
                if role.stands == stands
                and (role.matches(parent) and child in role.merged if role.merged else role.matches(path))
            ),
            None,
        )
        if role is None:
            raise PatchError(
                f"module {path} ({stands})", f"is in no role of {family.stands}", "add it to the family's role list"
            )
        if "forward" in vars(module):
            raise PatchError(f"module {path}", "has a replaced forward already", "undo the other patch first")
        found[path] = role
    for role in family.roles:
        if role.kind in ("layer", "attention", "embedding", "head") and role not in found.values():
            raise PatchError(
                f"role {role.kind} at {role.path}", f"is played by no {role.stands}", "correct the family's role list"
            )
    for role in family.roles:
        if role.merged and any(role.matches(path) for path in found):
            _together(found, role)
    return found


def _together(found: dict[str, Role], role: Role) -> None:
    for path, at in found.items():
        if role.matches(path) and at.kind in ("attention", "mlp"):
            missing = [child for child in role.merged if found.get(f"{path}.{child}") is not role]
            if missing:
                raise PatchError(f"module {path}", f"lacks {', '.join(missing)}", "correct the family's role list")


def facts(model: Any, paths: dict[str, Role]) -> Facts:
    """What the model asks of its operators.

    Raises:
        PatchError: weights of several dtypes or devices, or not loaded; a bias on some of the linears merged into one.
    """
    settings = model.config
    kinds = {(parameter.dtype, parameter.device) for parameter in model.parameters()}
    if len(kinds) != 1:
        raise PatchError(
            "the model's weights", f"have several dtypes or devices: {sorted(map(str, kinds))}", "use one of each"
        )
    dtype, device = kinds.pop()
    if device.type == "meta":
        raise PatchError("the model's weights", "are not loaded", "load them first")
    modules = dict(model.named_modules())
    for path, role in paths.items():
        if role.merged:
            parent = path.rpartition(".")[0]
            if len({modules[f"{parent}.{child}"].bias is None for child in role.merged}) > 1:
                raise PatchError(
                    f"module {parent}", f"has a bias on some of {', '.join(role.merged)} only", "no engine merges that"
                )
    linears = [module for path, module in modules.items() if paths[path].kind in ("linear", "head")]
    head_dim = getattr(settings, "head_dim", None) or settings.hidden_size // settings.num_attention_heads
    return Facts(
        dtype=dtype,
        device=device,
        hidden=settings.hidden_size,
        heads=settings.num_attention_heads,
        kv_heads=settings.num_key_value_heads,
        head_dim=head_dim,
        vocabulary=settings.vocab_size,
        positions=settings.max_position_embeddings,
        bias=any(module.bias is not None for module in linears),
        rope_theta=float((getattr(settings, "rope_parameters", None) or {}).get("rope_theta", 0.0)),
        experts=getattr(settings, "num_experts", 0) or 0,
        expert_width=getattr(settings, "moe_intermediate_size", 0) or 0,
    )


def arguments(model: Any) -> list[str]:
    """Names of the positional arguments of the model's body."""
    return list(inspect.signature(type(model.model).forward).parameters)[1:]
