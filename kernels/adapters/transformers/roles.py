"""Model families as lists of roles: which module plays which role. A family is added by its list alone.

Paths are relative to the causal LM; `*` stands for the number of a layer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.tables.operators import RoleName

Kind = Literal["embedding", "layer", "norm", "attention", "linear", "mlp", "router", "experts", "head", "kept"]
PLAYED: dict[Kind, tuple[RoleName, ...]] = {
    "embedding": ("embedding",),
    "layer": (),
    "norm": ("norm",),
    "attention": ("rotary", "attention"),
    "linear": ("linear",),
    "mlp": ("activation",),
    "router": ("linear", "router"),
    "experts": ("experts",),
    "head": ("head",),
    "kept": (),
}
"""The operators that a module of each kind calls itself."""


@dataclass(slots=True, frozen=True)
class Role:
    """Modules of one kind.

    layer: pre-norm decoder layer with children input_layernorm, self_attn, post_attention_layernorm, mlp.
    attention: children q_proj, k_proj, v_proj, o_proj, and q_norm, k_norm where the family has them.
    linear: `merged` names the children of `path` that the engine computes as one product, in this order.
    mlp: children gate_proj, up_proj, down_proj, act_fn.
    router: `weight`, `top_k`, `norm_topk_prob`; gives (logits, weights, ids).
    experts: `gate_up_proj` [experts, 2 * width, hidden], `down_proj` [experts, hidden, width].
    kept: runs as it stands and computes nothing by itself, or nothing that is used.
    """

    kind: Kind
    path: str
    stands: str
    """Class name that must stand there."""
    merged: tuple[str, ...] = ()

    def matches(self, path: str) -> bool:
        """Whether a module path is one of this role's (of the parent's, for merged linears)."""
        return re.fullmatch(re.escape(self.path).replace(r"\*", r"\d+"), path) is not None


@dataclass(slots=True, frozen=True)
class Family:
    """A causal LM of transformers: its class and its roles. Every module must be in a role."""

    stands: str
    roles: tuple[Role, ...]


LAYER = "model.layers.*"
ATTENTION = f"{LAYER}.self_attn"
MLP = f"{LAYER}.mlp"


def body(name: str) -> tuple[Role, ...]:
    """What all pre-norm decoders of the Llama line share. `name` begins the names of the family's classes."""
    return (
        Role("kept", "", f"{name}ForCausalLM"),
        Role("kept", "model", f"{name}Model"),
        Role("kept", "model.layers", "ModuleList"),
        Role("kept", "model.rotary_emb", f"{name}RotaryEmbedding"),
        Role("embedding", "model.embed_tokens", "Embedding"),
        Role("layer", LAYER, f"{name}DecoderLayer"),
        Role("norm", f"{LAYER}.input_layernorm", f"{name}RMSNorm"),
        Role("norm", f"{LAYER}.post_attention_layernorm", f"{name}RMSNorm"),
        Role("attention", ATTENTION, f"{name}Attention"),
        Role("linear", ATTENTION, "Linear", ("q_proj", "k_proj", "v_proj")),
        Role("linear", ATTENTION, "Linear", ("o_proj",)),
        Role("norm", "model.norm", f"{name}RMSNorm"),
        Role("head", "lm_head", "Linear"),
    )


def gated_mlp(name: str) -> tuple[Role, ...]:
    """SwiGLU with merged gate and up."""
    return (
        Role("mlp", MLP, f"{name}MLP"),
        Role("linear", MLP, "Linear", ("gate_proj", "up_proj")),
        Role("linear", MLP, "Linear", ("down_proj",)),
        Role("kept", f"{MLP}.act_fn", "SiLUActivation"),
    )


def head_norms(name: str) -> tuple[Role, ...]:
    """Norms of q and k over the head size."""
    return Role("norm", f"{ATTENTION}.q_norm", f"{name}RMSNorm"), Role("norm", f"{ATTENTION}.k_norm", f"{name}RMSNorm")


def moe(name: str) -> tuple[Role, ...]:
    """Softmax top-k router before merged experts."""
    return (
        Role("kept", MLP, f"{name}SparseMoeBlock"),
        Role("router", f"{MLP}.gate", f"{name}TopKRouter"),
        Role("experts", f"{MLP}.experts", f"{name}Experts"),
        Role("kept", f"{MLP}.experts.act_fn", "SiLUActivation"),
    )


FAMILIES: tuple[Family, ...] = (
    Family("LlamaForCausalLM", body("Llama") + gated_mlp("Llama")),
    Family("Qwen3ForCausalLM", body("Qwen3") + head_norms("Qwen3") + gated_mlp("Qwen3")),
    Family("Qwen3MoeForCausalLM", body("Qwen3Moe") + head_norms("Qwen3Moe") + gated_mlp("Qwen3Moe") + moe("Qwen3Moe")),
)


def family_of(stands: str, more: tuple[Family, ...] = ()) -> Family:
    """The family of a model class; `more` comes before the built-in ones.

    Raises:
        PatchError: no role list for this class.
    """
    for family in (*more, *FAMILIES):
        if family.stands == stands:
            return family
    known = ", ".join(family.stands for family in FAMILIES)
    raise PatchError(
        f"model class {stands}", f"has no role list (known: {known})", 'write one: docs/exact-zero.md, "A new family"'
    )
