"""The expert layers of the two sides, run as they are, are reproduced by plain PyTorch bit for bit.

Legend: T token rows, E experts, H hidden, F expert width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from samebits.tools.diff.bits import next_ulp
from samebits.tools.diff.causes.name import name_cause
from samebits.tools.diff.causes.observation import Observation

T, E, H, F, TOP = 192, 8, 256, 128, 2
MAKE = torch.Generator().manual_seed(11)
X_TH = torch.randn(T, H, generator=MAKE).bfloat16()
LOGITS_TE = torch.randn(T, E, generator=MAKE).bfloat16()
W13 = (0.06 * torch.randn(E, 2 * F, H, generator=MAKE)).bfloat16()
W2 = (0.06 * torch.randn(E, H, F, generator=MAKE)).bfloat16()


def engine(isa: str) -> torch.Tensor:
    """vLLM's own router and fused expert kernel."""
    from vllm import _custom_ops as ops
    from vllm.model_executor.layers.fused_moe.router.cpu_router import _softmax_topk

    if isa == "amx":
        if not torch.cpu._is_amx_tile_supported():
            pytest.skip("this CPU has no AMX")
        torch.cpu._init_amx()
    weight, number = _softmax_topk(LOGITS_TE, TOP, True)
    packed = [ops.cpu_prepack_moe_weight(one.contiguous(), isa) for one in (W13, W2)]
    out_TH = torch.empty_like(X_TH)
    ops.cpu_fused_moe(out_TH, X_TH, *packed, None, None, weight.contiguous(), number.contiguous(), "silu", isa, False)
    return out_TH


def trainer(implementation: str) -> torch.Tensor:
    """transformers' own experts, after the softmax of its router."""
    from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    config = Qwen3MoeConfig(
        hidden_size=H, moe_intermediate_size=F, num_experts=E, num_local_experts=E, num_experts_per_tok=TOP
    )
    config._experts_implementation = implementation
    module: Any = Qwen3MoeExperts(config).bfloat16()
    with torch.no_grad():
        module.gate_up_proj.copy_(W13)
        module.down_proj.copy_(W2)
        top, number = torch.topk(torch.softmax(LOGITS_TE, -1, dtype=torch.float), TOP, dim=-1)
        out_TH: torch.Tensor = module(X_TH, number, (top / top.sum(-1, keepdim=True)).bfloat16())
    return out_TH


def observation(isa: str, implementation: str) -> Observation:
    inputs = {"x": X_TH, "logits": LOGITS_TE, "w13": W13, "w2": W2}
    return Observation("experts", inputs, engine(isa), trainer(implementation), {"top_k": TOP, "renormalise": True})


@pytest.mark.parametrize(("isa", "implementation"), [("vec", "grouped_mm"), ("amx", "eager")])
def test_every_bit_of_both_sides_is_reproduced_and_the_cause_named(isa: str, implementation: str) -> None:
    named = name_cause(observation(isa, implementation))
    assert named.rollout, named.cause.why
    assert named.trainer
    assert (named.rollout["hidden"], named.rollout["sum"], named.rollout["order"]) == ("last", "fma", "topk_first")
    assert named.trainer["result"] == "weighted_rounded"
    assert named.cause.name != "unknown", named.cause.why


def test_one_ulp_in_one_element_of_the_engine_is_not_explained() -> None:
    seen = observation("vec", "grouped_mm")
    moved = seen.rollout.clone()
    moved[7, 7] = next_ulp(moved[7, 7])
    named = name_cause(replace(seen, rollout=moved))
    assert named.cause.name == "unknown"
    assert named.rollout is None
