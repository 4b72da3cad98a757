"""Paged and varlen attention on CPU: one arithmetic for every path, interpreted kernels, refusals, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.kernels.ops.heavy import interpreted, raw, unequal_rows

from samebits.kernels.ops.attention import contract as contract_module
from samebits.kernels.ops.attention import inputs
from samebits.kernels.ops.attention.contract import contract
from samebits.kernels.ops.attention.dispatch import sections_for, splits_for
from samebits.kernels.ops.attention.op import attention, attention_op
from samebits.kernels.ops.attention.reference import reference
from samebits.kernels.ops.attention_varlen import inputs as varlen_inputs
from samebits.kernels.ops.attention_varlen.op import attention_varlen, attention_varlen_op
from samebits.kernels.ops.attention_varlen.reference import reference as varlen_reference

CPU = torch.device("cpu")
SHAPE = inputs.SMALL_SHAPES[0]
WHERE = (SHAPE, torch.bfloat16, CPU, False)


@pytest.mark.parametrize("name", ["attention", "attention_varlen"])
def test_the_interpreted_kernels_have_the_bits_of_the_contract(name: str) -> None:
    found = interpreted(name)
    assert found["compared"] > 10_000
    assert found["wrong"] == 0
    assert found.get("planted", 1) > 0
    assert 0 <= found.get("backward", 0) < 1e-5


@pytest.mark.parametrize("groups", [inputs.paths, inputs.companies, inputs.sweep])
def test_a_token_has_the_same_bits_on_every_path_in_any_company_and_batch(groups: Any) -> None:
    compared, wrong = unequal_rows(groups(*WHERE), attention)
    assert compared > 5
    assert wrong == 0


def test_a_whole_sequence_has_the_bits_of_its_prefill_over_pages() -> None:
    one = inputs.story(SHAPE, 150, torch.bfloat16, CPU, 1, False)
    flat = varlen_inputs.join(SHAPE, [one, one], False)
    paged = inputs.assemble(SHAPE, [(one, 0, 150)], 2, False)
    assert torch.equal(raw(attention_varlen(**flat)), raw(attention(**paged).repeat(2, 1, 1)))


def test_segments_are_part_of_the_bits_so_that_the_tests_above_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    one = inputs.story(SHAPE, 400, torch.bfloat16, CPU, 3, False)
    args = inputs.assemble(SHAPE, [(one, 300, 400)], 4, False)
    before = contract(**args)
    monkeypatch.setattr(contract_module, "SEGMENT_TILES", 1)
    assert not torch.equal(raw(contract(**args)), raw(before))


def test_a_sequence_of_one_token_gives_its_value() -> None:
    one = inputs.story(SHAPE, 1, torch.bfloat16, CPU, 5, False)
    out = attention(**inputs.assemble(SHAPE, [(one, 0, 1)], 6, False))
    assert torch.equal(raw(out[0]), raw(one.v[0].repeat_interleave(SHAPE["heads"] // SHAPE["key_heads"], 0)))


def test_the_output_is_attention_within_rounding() -> None:
    for case in inputs.cases(SHAPE, torch.float32, CPU, False):
        exact = reference(**case.args)
        assert float((attention(**case.args) - exact).norm() / exact.norm()) < 2e-6, case.name


def test_no_query_gives_no_row() -> None:
    one = inputs.story(SHAPE, 4, torch.bfloat16, CPU, 7, False)
    args = inputs.assemble(SHAPE, [(one, 3, 4)], 8, False)
    empty = {**args, "q": args["q"][:0], "cu_seqlens_q": torch.zeros(2, dtype=torch.int32)}
    assert attention(**empty).shape == (0, SHAPE["heads"], SHAPE["head"])


def test_gradients_are_those_of_float64_within_rounding() -> None:
    args = varlen_inputs.draw(SHAPE, 90, torch.float32, CPU, 9, False)
    names = varlen_inputs.GRADS
    leaves = [args[n].requires_grad_() for n in names]
    wide = [args[n].detach().double().requires_grad_() for n in names]
    grad = torch.randn(args["q"].shape)
    mine = torch.autograd.grad(attention_varlen(**args), leaves, grad)
    exact = torch.autograd.grad(
        varlen_reference(**{**args, **dict(zip(names, wide, strict=True))}), wide, grad.double()
    )
    for got, want in zip(mine, exact, strict=True):
        assert float((got - want).norm() / want.norm()) < 2e-6


def test_fakes_and_autograd_are_registered_as_pytorch_wants_them() -> None:
    one = inputs.story(SHAPE, 6, torch.float32, CPU, 10, False)
    torch.library.opcheck(attention_op.overload, tuple(inputs.assemble(SHAPE, [(one, 4, 6)], 11, False).values()))
    args = varlen_inputs.draw(SHAPE, 6, torch.float32, CPU, 12, False)
    leaves = [args[n].requires_grad_() for n in varlen_inputs.GRADS]
    torch.library.opcheck(
        attention_varlen_op.overload, (*leaves, args["cu_seqlens"], args["max_seq_len"], args["scale"])
    )


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda a: {"q": a["q"].int()}, "dtype"),
        (lambda a: {"q": a["q"].float()}, "cast"),
        (lambda a: {"q": a["q"][..., :32].contiguous()}, "head size 32"),
        (lambda a: {"q": a["q"].transpose(0, 1).contiguous().transpose(0, 1)}, "side by side"),
        (lambda a: {"k_cache": a["k_cache"][:, :12], "v_cache": a["v_cache"][:, :12]}, "power of two"),
        (lambda a: {"v_cache": a["v_cache"][:1]}, "caches must be"),
        (lambda a: {"block_table": a["block_table"].long()}, "int32"),
        (lambda a: {"cu_seqlens_q": a["cu_seqlens_q"][:-1]}, "cu_seqlens_q"),
        (lambda a: {"scale": 0.0}, "scale"),
    ],
)
def test_a_call_outside_the_contract_is_refused_with_its_reason(change: Any, word: str) -> None:
    one = inputs.story(SHAPE, 20, torch.bfloat16, CPU, 13, False)
    args = inputs.assemble(SHAPE, [(one, 10, 20)], 14, False)
    with pytest.raises(ValueError, match=f"samebits attention: .*{word}"):
        attention(**{**args, **change(args)})


def test_prefill_cuts_key_heads_in_sections_only_where_one_sequence_exceeds_l2() -> None:
    head_bytes, l2 = 16384 * 128 * 4, 60 << 20
    assert sections_for(8, head_bytes // 2, l2) == 1
    assert sections_for(8, head_bytes, l2) == 4
    assert sections_for(6, 2 * head_bytes, l2) == 2
    assert sections_for(1, 64 * head_bytes, l2) == 1
    assert all(heads % sections_for(heads, 9 * head_bytes, l2) == 0 for heads in range(1, 33))


def test_splits_fill_the_gpu_and_never_outnumber_the_segments() -> None:
    assert splits_for(1, 8, 64, 132) == 16
    assert splits_for(1, 8, 2, 132) == 2
    assert splits_for(32, 8, 64, 132) == 1


@pytest.mark.parametrize(
    ("lengths", "known", "launched"),
    [
        ([1, 1, 1], 0, {"decode"}),
        ([30, 9, 200], 9, {"prefill"}),
        ([30, 9, 200], 0, {"decode", "prefill"}),
        ([30, 8, 200], 8, {"decode", "prefill"}),
        ([30, 1, 200], 1, {"decode", "prefill"}),
        ([40, 40], 0, {"prefill"}),
        ([3, 8], 3, {"decode"}),
    ],
)
def test_what_no_sequence_needs_is_not_launched(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], known: int, launched: set[str]
) -> None:
    """Two query heads per key head: up to 8 tokens are one decode program."""
    from samebits.kernels.ops.attention import dispatch

    found: set[str] = set()
    for name in ("decode", "prefill"):
        monkeypatch.setattr(dispatch, name, lambda *_, name=name: found.add(name))
    q, cache = torch.zeros(sum(lengths), 4, 64), torch.zeros(1, 16, 2, 64)
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    table = torch.zeros(len(lengths), 1, dtype=torch.int32)
    longest = max(lengths)
    dispatch.run(q, cache, cache, table, starts, seq_lens, longest, longest, 0.1, min_query_len=known)
    assert found == launched
