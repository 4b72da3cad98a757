"""The table "samebits" in a trainer, without an engine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.tables.operators import Facts
from samebits.kernels.adapters.tables.rotary_table import rotary_table
from samebits.kernels.adapters.tables.samebits_ops import check, embedding, float32_head
from samebits.kernels.adapters.transformers.engine import patch
from samebits.kernels.registry import operator
from samebits.tools.sides.transformers.tiny import write_tiny

SMALL = {"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 192, "vocab_size": 192}
FACTS = Facts(torch.bfloat16, torch.device("cpu"), 128, 4, 2, 64, 192, 512, False, rope_theta=1e4)


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = write_tiny(tmp_path_factory.mktemp(request.param) / "model", request.param, **SMALL)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


def logits_of(model: Any, *sequences: torch.Tensor) -> torch.Tensor:
    positions = torch.cat([torch.arange(len(ids)) for ids in sequences])
    return model(input_ids=torch.cat(sequences)[None], position_ids=positions[None], use_cache=False).logits[0]


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.detach().view(torch.int16 if x.element_size() == 2 else torch.int32)


def test_every_role_is_played_by_an_operator_of_the_library_and_a_sequence_keeps_its_bits_in_company(
    model: Any,
) -> None:
    draw = torch.Generator().manual_seed(0)
    one, two = (torch.randint(2, 192, (n,), generator=draw) for n in (37, 150))
    with torch.no_grad():
        stock = logits_of(model, one)
        patched = patch(model, "samebits")
        alone, packed = logits_of(model, one), logits_of(model, two, one)
        logprob = patched.logprob(alone, one)
    patched.undo()
    names = {role: (name, calls) for role, (name, calls) in patched.read_back().items()}
    assert all(name.startswith("samebits::") and calls > 0 for name, calls in names.values()), names
    assert {"embedding", "norm", "rotary", "attention", "linear", "head", "activation", "logprob"} == set(names)
    assert torch.equal(bits(packed[150:]), bits(alone))
    assert not torch.equal(bits(alone), bits(stock)), "the table has the bits of the stock model: it did not run"
    assert float((alone.float() - stock.float()).abs().max()) < 0.05
    assert bool((logprob < 0).all())


def test_gradients_are_as_close_to_float32_as_those_of_the_stock_model(model: Any) -> None:
    ids = torch.randint(2, 192, (60,), generator=torch.Generator().manual_seed(1))

    def gradients(run: Any, logprob: Any) -> dict[str, torch.Tensor]:
        run.zero_grad()
        (-logprob(logits_of(run, ids)[:-1], ids[1:]).mean()).backward()
        return {name: p.grad.float().flatten() for name, p in run.named_parameters() if p.grad is not None}

    def plain(logits: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        return logits.float().log_softmax(-1).gather(1, token[:, None])[:, 0]

    wide = type(model)(model.config).float()
    wide.load_state_dict({name: value.float() for name, value in model.state_dict().items()})
    truth, stock = gradients(wide.eval(), plain), gradients(model, plain)
    patched = patch(model, "samebits")
    ours = gradients(model, patched.logprob)
    patched.undo()
    model.zero_grad()
    assert set(ours) == set(truth)
    for name, value in truth.items():
        near = {arm: float(torch.cosine_similarity(g[name], value, 0)) for arm, g in (("stock", stock), ("ours", ours))}
        assert near["ours"] > near["stock"] - 1e-3, (name, near)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"experts": 8}, "mixture of experts"),
        ({"head_dim": 96}, "head size 96"),
        ({"heads": 34, "kv_heads": 2}, "query heads"),
        ({"dtype": torch.float64}, "float64"),
        ({"rope_theta": 0.0}, "rope_theta"),
        ({"device": torch.device("meta")}, "device meta"),
    ],
)
def test_what_the_operators_do_not_cover_is_refused_at_start_up(change: dict[str, Any], word: str) -> None:
    check(FACTS)
    with pytest.raises(PatchError, match=word):
        check(dataclasses.replace(FACTS, **change))


def test_the_rotary_table_is_rounded_once_from_float64() -> None:
    table = rotary_table(1e6, 128, 4096, torch.bfloat16)
    angle = 4095 * 1e6 ** -(torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    assert torch.equal(table[4095, :64], angle.cos().float().bfloat16())
    assert torch.equal(table[4095, 64:], angle.sin().float().bfloat16())


def test_the_padding_row_of_an_embedding_gets_no_gradient() -> None:
    weight = torch.randn(5, 8, requires_grad=True)
    embedding(operator("embedding").op, torch.tensor([1, 3, 1]), weight, 1).sum().backward()
    assert weight.grad is not None
    assert not bool(weight.grad[1].any())
    assert bool((weight.grad[3] == 1).all())


def test_a_float32_head_gives_the_accumulator_that_the_other_rounds(model: Any) -> None:
    ids = torch.randint(2, 192, (20,), generator=torch.Generator().manual_seed(2))
    patched = patch(model, "samebits")
    with torch.no_grad():
        narrow = logits_of(model, ids)
    patched.undo()
    patched = patch(model, {"*": "samebits", "head": float32_head()})
    wide = logits_of(model, ids)
    patched.logprob(wide, ids).sum().backward()
    patched.undo()
    model.zero_grad()
    assert wide.dtype == torch.float32
    assert torch.equal(bits(wide.bfloat16()), bits(narrow))
    assert bool((wide != wide.bfloat16().float()).any()), "the float32 logits hold nothing that bf16 does not"
