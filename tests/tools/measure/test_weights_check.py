"""Equal weights through merging and padding; differing ones by name."""

from __future__ import annotations

from typing import Any

import torch

from samebits.tools.measure.weights_check import compare_weights
from samebits.tools.schema.artifacts.weights import SideWeights
from samebits.tools.sides.scoring.views import weight_view
from samebits.tools.sides.vllm.push import expected_views, missing

GENERATOR = torch.Generator().manual_seed(0)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR).bfloat16()


Q, K, V, NORM, HEAD, OTHER = drawn(8, 4), drawn(4, 4), drawn(4, 4), drawn(4), drawn(10, 4), drawn(8, 4)
TRAINER: dict[str, torch.Tensor] = {
    "model.layers.0.attn.q_proj.weight": Q,
    "model.layers.0.attn.k_proj.weight": K,
    "model.layers.0.attn.v_proj.weight": V,
    "model.layers.0.norm.weight": NORM,
    "model.layers.1.attn.o_proj.weight": OTHER,
    "lm_head.weight": HEAD,
}
ROLLOUT: dict[str, torch.Tensor] = {
    "model.layers.0.attn.qkv_proj.weight": torch.cat([Q, K, V]),
    "model.layers.0.norm.weight": NORM,
    "model.layers.1.attn.o_proj.weight": OTHER,
    "lm_head.weight": torch.cat([HEAD, torch.zeros(6, 4).bfloat16()]),
}


def side(role: str, weights: dict[str, torch.Tensor], **more: Any) -> SideWeights:
    views = [weight_view(*name.rsplit(".", 1), tensor, "parameter") for name, tensor in weights.items()]
    return SideWeights(role=role, weights=tuple(views), **more)


def text(rollout: dict[str, torch.Tensor], trainer: dict[str, torch.Tensor] = TRAINER) -> str:
    return compare_weights(side("rollout", rollout), side("trainer", trainer)).text


def test_merged_and_padded_weights_are_equal_to_their_parts() -> None:
    assert compare_weights(side("rollout", ROLLOUT), side("trainer", TRAINER)).equal
    assert text(ROLLOUT) == "equal (6 tensors)"


def test_one_ulp_in_one_part_names_that_part_alone() -> None:
    merged = ROLLOUT["model.layers.0.attn.qkv_proj.weight"].clone()
    merged[9, 2] = torch.nextafter(merged[9, 2], torch.tensor(9.0).bfloat16())
    said = text(ROLLOUT | {"model.layers.0.attn.qkv_proj.weight": merged})
    assert said.startswith(
        "differ: model.layers.0.attn.k_proj.weight; only on the rollout side: model.layers.0.attn.qkv_proj.weight"
    )


def test_minus_zero_is_another_weight() -> None:
    zero, minus = torch.zeros(3, 4), torch.zeros(3, 4)
    zero[0, 0] = minus[0, 0] = 1.0
    minus[1, 1] = -0.0
    assert text({"a.weight": zero}, {"a.weight": zero}) == "equal (1 tensors)"
    assert text({"a.weight": zero}, {"a.weight": minus}).startswith("differ: a.weight")


def test_parts_merged_in_another_order_or_not_at_all_differ() -> None:
    less = {name: tensor for name, tensor in ROLLOUT.items() if "norm" not in name}
    assert text(less).startswith("differ: model.layers.0.norm.weight")


def test_weights_of_another_layer_are_named_as_such() -> None:
    swapped = {name.replace("layers.1", "layers.2"): tensor for name, tensor in ROLLOUT.items()}
    assert "o_proj.weight (the rollout side has it at model.layers.2.attn.o_proj.weight)" in text(swapped)


def test_a_weight_that_only_the_rollout_side_has_counts() -> None:
    assert "only on the rollout side: model.layers.0.bias.weight" in text(
        ROLLOUT | {"model.layers.0.bias.weight": drawn(3, 4)}
    )


BIASES: dict[str, torch.Tensor] = {
    f"model.layers.0.attn.{part}_proj.bias": torch.tensor([value, -0.0, value * 3]).bfloat16()
    for part, value in (("q", 0.3), ("k", -1.1), ("v", 2e-39))
}
"""2e-39 is subnormal."""


def merged_bias() -> torch.Tensor:
    """As vLLM's CPU engine holds it: float32."""
    return torch.cat(list(BIASES.values())).float()


def with_bias(bias: torch.Tensor) -> str:
    return text(ROLLOUT | {"model.layers.0.attn.qkv_proj.bias": bias}, TRAINER | BIASES)


def test_a_merged_bias_that_the_engine_widened_is_equal_and_said_to_be_wider() -> None:
    assert with_bias(merged_bias()) == (
        "equal (9 tensors; 3 of them float32 on the rollout side and bfloat16 on the trainer side, with the same "
        "values)"
    )


def test_a_push_finds_its_biases_in_the_one_that_the_engine_widened_and_no_other_value() -> None:
    expected = expected_views(BIASES, tied=False)
    for move, lost in ((0.0, []), (2.0**-20, ["model.layers.0.attn.q_proj.bias"])):
        bias = merged_bias()
        bias[0] += move
        assert missing(expected, side("rollout", {"model.layers.0.attn.qkv_proj.bias": bias})) == lost


def test_one_float32_ulp_in_a_widened_bias_names_that_part_alone() -> None:
    bias = merged_bias()
    bias[3] = torch.nextafter(bias[3], torch.tensor(9.0))
    assert with_bias(bias) == (
        "differ: model.layers.0.attn.k_proj.bias; only on the rollout side: model.layers.0.attn.qkv_proj.bias"
    )


def test_a_zero_of_the_other_sign_in_a_widened_bias_differs() -> None:
    bias = merged_bias()
    bias[7] = 0.0
    assert with_bias(bias).startswith("differ: model.layers.0.attn.v_proj.bias;")


def test_a_float32_trainer_of_the_same_values_is_equal_and_said_to_be_wider() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        narrow = {name: tensor.to(dtype) for name, tensor in TRAINER.items()}
        wide = {name: tensor.float() for name, tensor in narrow.items()}
        name = str(dtype).removeprefix("torch.")
        assert text(narrow, wide) == (
            f"equal (6 tensors; 6 of them {name} on the rollout side and float32 on the trainer side, with the same "
            "values)"
        )


def test_what_cannot_be_compared_is_not_called_equal() -> None:
    other = {name: tensor.float() * (1 + 2**-20) for name, tensor in TRAINER.items()}
    found = compare_weights(side("rollout", ROLLOUT), side("trainer", other))
    assert found.equal is None
    assert found.text == "not checked: dtypes differ, rollout bfloat16, trainer float32"
    assert compare_weights(side("rollout", {}), side("trainer", TRAINER)).equal is None


def test_what_was_not_read_back_is_said() -> None:
    found = compare_weights(side("rollout", ROLLOUT, notes=("experts of layer 3: packed",)), side("trainer", TRAINER))
    assert found.text == "equal (6 tensors); not read back: experts of layer 3: packed"
