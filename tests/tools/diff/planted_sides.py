"""A rollout side that is the trainer's own model with known operators done another way: what a diff must find, no more,
no less.

    side = "python:planted_sides:factory", engine = { faults = "norm:1,linear:0" }

Legend: B rows, L length, K input and N output features, H hidden.
"""

from __future__ import annotations

import os
import types
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

SPLIT = 2


def norm_weight_in_float32(self: Any, hidden_BLH: torch.Tensor) -> torch.Tensor:
    """RMS norm whose weight is multiplied before the one rounding (stock: after it)."""
    x_BLH = hidden_BLH.float()
    x_BLH = x_BLH * torch.rsqrt(x_BLH.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    return (x_BLH * self.weight.float()).to(hidden_BLH.dtype)


def linear_in_two_parts(self: Any, x_BLK: torch.Tensor) -> torch.Tensor:
    """K cut in two; each product rounded to the activation dtype, then added."""
    parts = zip(x_BLK.chunk(SPLIT, -1), self.weight.chunk(SPLIT, -1), strict=True)
    first, second = (functional.linear(x.contiguous(), w.contiguous()) for x, w in parts)
    return first + second


def experts_weighted_in_float32(
    self: Any, hidden_TH: torch.Tensor, index_Tk: torch.Tensor, weights_Tk: torch.Tensor
) -> torch.Tensor:
    """Experts whose results are weighted in float32 (stock: and rounded again)."""
    part_TkH = torch.zeros(*index_Tk.shape, hidden_TH.shape[1])
    for number in torch.unique(index_Tk).tolist():
        row, slot = torch.where(index_Tk == number)
        gate, up = functional.linear(hidden_TH[row], self.gate_up_proj[number]).chunk(2, -1)
        result = functional.linear(functional.silu(gate) * up, self.down_proj[number])
        part_TkH[row, slot] = result.float() * weights_Tk[row, slot, None].float()
    return part_TkH.sum(1).to(hidden_TH.dtype)


class Merged(nn.Module):
    """q, k and v as one linear, as an engine has them; stands at q's place and hands the parts out."""

    def __init__(self, parts: list[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.cat([part.weight.detach() for part in parts]))
        self.sizes = [part.weight.shape[0] for part in parts]

    def forward(self, x_BLK: torch.Tensor) -> torch.Tensor:
        return functional.linear(x_BLK, self.weight)


class Part(nn.Module):
    """One part of the last merged result."""

    def __init__(self, take: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.take = take

    def forward(self, x_BLK: torch.Tensor) -> torch.Tensor:
        return self.take(x_BLK)


def merge_qkv(attention: Any) -> None:
    """Replace the three projections of one attention by a merged one."""
    merged = Merged([attention.q_proj, attention.k_proj, attention.v_proj])
    attention.qkv_proj = merged
    kept: list[torch.Tensor] = []

    def first(x_BLK: torch.Tensor) -> torch.Tensor:
        kept[:] = list(merged(x_BLK).split(merged.sizes, -1))
        return kept[0]

    attention.q_proj, attention.k_proj, attention.v_proj = Part(first), Part(lambda _: kept[1]), Part(lambda _: kept[2])


def linear_in_any_order(self: Any, x_BLK: torch.Tensor) -> torch.Tensor:
    """K cut in four, the parts added in an order that differs from call to call: atomics."""
    parts = [functional.linear(x, w) for x, w in zip(x_BLK.chunk(4, -1), self.weight.chunk(4, -1), strict=True)]
    total_BLN = torch.zeros_like(parts[0])
    for part in sorted(parts, key=lambda _: os.urandom(4)):
        total_BLN = total_BLN + part
    return total_BLN


def linear_that_counts(self: Any, x_BLK: torch.Tensor) -> torch.Tensor:
    """The result depends on how often it was called before."""
    self.count += 1
    return functional.linear(x_BLK, self.weight) * (1 + self.count / 64)


def linear_of_unwritten_memory(self: Any, x_BLK: torch.Tensor) -> torch.Tensor:
    """Adds the last element of memory that was never written; zero on most days."""
    scratch = torch.empty(1 << 20, dtype=x_BLK.dtype, device=x_BLK.device)
    y_BLN = functional.linear(x_BLK.contiguous(), self.weight)
    return y_BLN + y_BLN * torch.nan_to_num(scratch[-1], nan=1.0).clamp(0, 1) + y_BLN / 128


def linear_by_batch(self: Any, x_BLK: torch.Tensor) -> torch.Tensor:
    """A batch of one takes another order of the sum."""
    return linear_in_two_parts(self, x_BLK) if x_BLK.shape[0] == 1 else functional.linear(x_BLK, self.weight)


LINEARS = {
    "race": linear_in_any_order,
    "state": linear_that_counts,
    "unwritten": linear_of_unwritten_memory,
    "batch": linear_by_batch,
}


def rotary_angles_in_bfloat16(self: Any, x_BLH: torch.Tensor, position_ids_BL: torch.Tensor) -> Any:
    """Position times frequency in bfloat16: cosine and sine drift with the position."""
    angle_BLE = position_ids_BL[..., None].bfloat16() * self.inv_freq.bfloat16()
    both_BLD = torch.cat([angle_BLE, angle_BLE], -1).float()
    return both_BLD.cos().to(x_BLH.dtype), both_BLD.sin().to(x_BLH.dtype)


def plant(model: Any, fault: str) -> None:
    """Apply one "kind:layer"."""
    kind, _, number = fault.partition(":")
    layer = model.model.layers[int(number)]
    if kind == "norm":
        module = layer.post_attention_layernorm
        module.forward = types.MethodType(norm_weight_in_float32, module)
    elif kind == "linear":
        module = layer.mlp.down_proj
        module.forward = types.MethodType(linear_in_two_parts, module)
    elif kind == "rotary":
        rotary = model.model.rotary_emb
        rotary.forward = types.MethodType(rotary_angles_in_bfloat16, rotary)
    elif kind in LINEARS:
        module = layer.mlp.down_proj
        module.count = 0
        module.forward = types.MethodType(LINEARS[kind], module)
    elif kind == "merged":
        merge_qkv(layer.self_attn)
    elif kind == "experts":
        layer.mlp.experts.forward = types.MethodType(experts_weighted_in_float32, layer.mlp.experts)
    elif kind == "weight":
        layer.mlp.down_proj.weight.data[3] *= 2
    else:
        raise ValueError(fault)


class Planted:
    """What the factory returns."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.vocabulary = int(module.config.vocab_size)

    def forward(self, token_ids_BL: torch.Tensor, position_ids_BL: torch.Tensor) -> torch.Tensor:
        """Logits [B, L, V]."""
        logits: torch.Tensor = self.module(input_ids=token_ids_BL, position_ids=position_ids_BL, use_cache=False).logits
        return logits


def factory(model: str, dtype: torch.dtype, device: torch.device, faults: str = "") -> Planted:
    """The model folder with faults planted."""
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation="sdpa").to(device).eval()
    for fault in filter(None, faults.split(",")):
        plant(loaded, fault)
    return Planted(loaded)
