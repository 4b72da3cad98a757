"""What the engine does to a model, and what it refuses; plain PyTorch operators, no vLLM."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.tables.operators import Operator
from samebits.kernels.adapters.transformers.engine import patch
from samebits.kernels.adapters.transformers.roles import Family, body, gated_mlp
from samebits.tools.sides.transformers.tiny import write_tiny

FAMILY_NAMES = ["qwen3", "qwen3_tied", "llama", "qwen3_moe"]
SMALL: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 16,
    "vocab_size": 128,
}
IDS = torch.randint(2, 128, (1, 21), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def make(family: Any = "qwen3", **settings: Any) -> Any:
        folder = write_tiny(tmp_path / f"{family}{len(list(tmp_path.iterdir()))}", family, **SMALL)
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, experts_implementation="eager", **settings
        ).eval()

    return make


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.view(torch.int16), b.view(torch.int16))


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_with_stock_operators_the_patched_model_has_the_bits_of_the_unpatched_one(make: Any, family: str) -> None:
    model = make(family)
    before = model(input_ids=IDS).logits
    assert same(patch(model, "stock").model(input_ids=IDS).logits, before)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_stock_operators_give_the_gradients_of_the_unpatched_model(make: Any, family: str) -> None:
    model, other = make(family), make(family)
    other.load_state_dict(model.state_dict())
    patch(model, "stock")
    for one in (model, other):
        one(input_ids=IDS).logits.float().logsumexp(-1).sum().backward()
    for (name, ours), (_, theirs) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        cosine = torch.nn.functional.cosine_similarity(ours.grad.flatten().double(), theirs.grad.flatten().double(), 0)
        assert float(cosine) > 0.999, name


def test_undo_brings_the_stock_model_back(make: Any) -> None:
    model = make()
    before, state = model(input_ids=IDS).logits, set(model.state_dict())
    norm = Operator("norm", "doubled", lambda x, residual, weight, eps: (x * 2, residual))
    patched = patch(model, {"*": "stock", "norm": norm})
    assert not same(model(input_ids=IDS).logits, before)
    assert set(model.state_dict()) == state
    patched.undo()
    assert same(model(input_ids=IDS).logits, before)
    assert not any("forward" in vars(module) for module in model.modules())


def test_packed_sequences_do_not_see_each_other(make: Any) -> None:
    model = make()
    patch(model, "stock")
    alone = model(input_ids=IDS[:, :9]).logits
    both = torch.cat([IDS[:, :9], IDS], 1)
    positions = torch.cat([torch.arange(9), torch.arange(21)])[None]
    packed = model(input_ids=both, position_ids=positions).logits
    assert torch.allclose(packed[:, :9].float(), alone.float(), atol=0.05)
    assert not torch.allclose(model(input_ids=both).logits[:, 9:].float(), packed[:, 9:].float(), atol=0.05)


def test_the_read_back_lists_what_was_replaced_and_how_often_it_ran(make: Any) -> None:
    model = make("qwen3_moe")
    patched = patch(model, "stock")
    assert {calls for _, calls in patched.read_back().values()} == {0}
    logits = model(input_ids=IDS).logits[0]
    patched.logprob(logits, IDS[0])
    assert patched.read_back() == {
        "embedding": ("stock: torch embedding", 1),
        "norm": ("stock: transformers RMSNorm", 2 * 4 + 1),
        "rotary": ("stock: transformers rotary", 2),
        "attention": ("stock: torch SDPA", 2),
        "linear": ("stock: torch linear", 2 * 3),
        "head": ("stock: torch linear", 1),
        "router": ("stock: transformers top-k router", 2),
        "experts": ("stock: transformers eager experts", 2),
        "logprob": ("stock: logits - logsumexp", 1),
    }
    lines = [str(line) for line in patched.replaced]
    assert "model.layers.1.self_attn.k_proj: Linear -> stock: torch linear" in lines
    assert "model.layers.0: Qwen3MoeDecoderLayer -> residual handed to the next norm" in lines
    replaced = {path for path, module in model.named_modules() if "forward" in vars(module)}
    assert replaced == {line.path for line in patched.replaced}


def test_a_replaced_module_that_does_not_run_is_an_error(make: Any) -> None:
    model = make()
    patch(model, "stock")
    mlp = model.model.layers[1].mlp
    mlp.forward = lambda x: x
    with pytest.raises(PatchError, match=r"model\.layers\.1\.mlp.*did not run"):
        model(input_ids=IDS)


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(PatchError, match=r"GPT2LMHeadModel.*no role list"):
        patch(GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=64)), "stock")


def test_a_module_in_no_role_is_refused(make: Any) -> None:
    model = make()
    model.model.layers[1].adapter = torch.nn.Linear(4, 4)
    with pytest.raises(PatchError, match=r"model\.layers\.1\.adapter \(Linear\): is in no role"):
        patch(model, "stock")


def test_a_module_of_another_class_is_refused(make: Any) -> None:
    model = make()
    model.model.norm = torch.nn.RMSNorm(64)
    with pytest.raises(PatchError, match=r"model\.norm \(RMSNorm\)"):
        patch(model, "stock")


def test_a_patched_model_cannot_be_copied(make: Any) -> None:
    model = make()
    patched = patch(model, "stock")
    with pytest.raises(PatchError, match="cannot be copied"):
        copy.deepcopy(model)
    patched.undo()
    assert same(copy.deepcopy(model)(input_ids=IDS).logits, model(input_ids=IDS).logits)


def test_a_model_moved_after_the_patch_is_refused(make: Any) -> None:
    model = make()
    patch(model, "stock")
    model.float()
    with pytest.raises(PatchError, match=r"moved to torch\.float32"):
        model(input_ids=IDS)


def test_a_model_is_patched_once(make: Any) -> None:
    model = make()
    patch(model, "stock")
    with pytest.raises(PatchError, match="replaced forward already"):
        patch(model, "stock")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("attention_dropout", 0.1),
        ("hidden_act", "gelu"),
        ("use_sliding_window", True),
        ("output_hidden_states", True),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4}),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("quantization_config", {"quant_method": "fp8"}),
    ],
)
def test_a_setting_no_operator_follows_is_refused(make: Any, setting: str, value: Any) -> None:
    model = make()
    setattr(model.config, setting, value)
    with pytest.raises(PatchError, match=setting):
        patch(model, "stock")
    assert not any("forward" in vars(module) for module in model.modules())


def test_gradient_checkpointing_is_refused_before_and_after_the_patch(make: Any) -> None:
    model = make()
    model.gradient_checkpointing_enable()
    with pytest.raises(PatchError, match="gradient checkpointing"):
        patch(model, "stock")
    model.gradient_checkpointing_disable()
    patch(model, "stock")
    model.gradient_checkpointing_enable()
    with pytest.raises(PatchError, match="gradient checkpointing"):
        model(input_ids=IDS)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_own_checkpointing_moves_no_bit_of_logits_or_gradients_and_does_compute_again(make: Any, family: str) -> None:
    model = make(family)
    patched = patch(model, "stock")
    found = []
    for on in (False, True):
        patched.checkpoint(on)
        model.zero_grad()
        before = patched.operators["attention"].calls
        logits = model(input_ids=IDS).logits
        logits.float().logsumexp(-1).sum().backward()
        gradients = [p.grad.clone() for p in model.parameters()]
        found.append((logits.detach(), gradients, patched.operators["attention"].calls - before))
    (plain, own, once), (kept, again, twice) = found
    assert same(plain, kept)
    assert all(same(a, b) for a, b in zip(own, again, strict=True))
    assert twice == 2 * once


def test_weights_of_two_dtypes_are_refused(make: Any) -> None:
    model = make()
    model.lm_head.float()
    with pytest.raises(PatchError, match="several dtypes"):
        patch(model, "stock")


def test_a_half_biased_group_is_refused(make: Any) -> None:
    model = make()
    model.model.layers[0].self_attn.k_proj.bias = torch.nn.Parameter(torch.zeros(32, dtype=torch.bfloat16))
    with pytest.raises(PatchError, match="bias on some"):
        patch(model, "stock")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"use_cache": True}, "cache"),
        ({"output_hidden_states": True}, "output_hidden_states"),
        ({"position_ids": torch.tensor([[*range(3, 24)]])}, "position_ids"),
        ({"position_ids": torch.tensor([[0, 1, 3, *range(4, 22)]])}, "position_ids"),
        ({"attention_mask": torch.tensor([[0] + [1] * 20])}, "padding before tokens"),
        ({"attention_mask": torch.ones(1, 1, 21, 21)}, r"not \[B, L\]"),
    ],
)
def test_a_call_the_operators_do_not_take_is_refused(make: Any, arguments: dict[str, Any], reason: str) -> None:
    model = make()
    patch(model, "stock")
    with pytest.raises(PatchError, match=reason):
        model(input_ids=IDS, **arguments)
    model(input_ids=IDS)


def test_a_sequence_beyond_the_rotary_table_is_refused(make: Any) -> None:
    model = make()
    model.config.max_position_embeddings = 20
    patch(model, "stock")
    with pytest.raises(PatchError, match="20 positions"):
        model(input_ids=IDS)


def test_unknown_roles_and_tables_are_refused(make: Any) -> None:
    model = make()
    for table, reason in (
        ({"*": "stock", "softmax": "stock"}, "role 'softmax'"),
        ("cudnn", "table 'cudnn'"),
        ({"norm": "stock"}, "has no operator"),
        ({"*": "stock", "norm": Operator("linear", "x", torch.nn.functional.linear)}, "plays the role 'linear'"),
    ):
        with pytest.raises(PatchError, match=reason):
            patch(model, table)


def test_a_family_is_added_by_its_role_list_alone() -> None:
    torch.manual_seed(0)
    model = (
        Qwen2ForCausalLM(Qwen2Config(**{**SMALL, "num_attention_heads": 4, "num_key_value_heads": 2})).bfloat16().eval()
    )
    with pytest.raises(PatchError, match="no role list"):
        patch(model, "stock")
    before = model(input_ids=IDS).logits
    qwen2 = Family("Qwen2ForCausalLM", body("Qwen2") + gated_mlp("Qwen2"))
    patched = patch(model, "stock", families=(qwen2,))
    assert same(model(input_ids=IDS).logits, before)
    assert patched.read_back()["attention"][1] == 2
