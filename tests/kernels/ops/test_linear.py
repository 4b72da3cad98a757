"""The linear operator on CPU: contract, interpreted kernels, the frozen table, refusals, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.kernels.ops.heavy import interpreted, raw, unequal_rows

from samebits.kernels.ops import rows
from samebits.kernels.ops.linear import cublaslt, dispatch, inputs
from samebits.kernels.ops.linear.contract import contract, contract_wide
from samebits.kernels.ops.linear.op import linear, linear_float32, linear_op
from samebits.kernels.ops.linear.reference import reference

CPU = torch.device("cpu")
SHAPE = {"n": 48, "k": 200, "bias": 1}


def choose(M: int, N: int = 4096, K: int = 4096, **changes: Any) -> dispatch.Choice:
    given = {"dtype": torch.bfloat16, "aligned": True, "has_bias": False, "device": 0, **changes}
    return dispatch.choose(M, N, K, **given)


def test_the_interpreted_kernels_have_the_bits_of_the_contract() -> None:
    found = interpreted("linear")
    assert found["compared"] > 20_000
    assert found["wrong"] == 0
    assert found["planted"] > 0


def test_a_row_keeps_its_bits_in_any_company_and_number_of_rows() -> None:
    where = (SHAPE, torch.bfloat16, CPU, False)
    for groups in (
        rows.companies(inputs.draw, inputs.ROWS, *where),
        rows.sweep(inputs.draw, inputs.ROWS, *where, dense=9, largest=64),
    ):
        compared, wrong = unequal_rows(groups, linear)
        assert compared > 50
        assert wrong == 0


def test_the_order_of_k_is_part_of_the_bits_so_that_the_tests_above_can_fail() -> None:
    args = inputs.draw(SHAPE, 64, torch.bfloat16, CPU, 1, False)
    turned = contract(args["x"].flip(1), args["weight"].flip(1).contiguous(), args["bias"])
    assert not torch.equal(raw(turned), raw(contract(**args)))


@pytest.mark.parametrize("parts", [2, 3, 48])
def test_a_weight_in_parts_has_the_bits_of_the_whole(parts: int) -> None:
    args = inputs.draw({"n": 48, "k": 8192, "bias": 1}, 5, torch.bfloat16, torch.device("cpu"), 3, False)
    x, weight, bias = args["x"], args["weight"], args["bias"]
    whole = linear_float32(x, weight, bias)  # not rounded: every bit of the chain is seen
    pieces = [linear_float32(x, w, b) for w, b in zip(weight.chunk(parts), bias.chunk(parts), strict=True)]
    assert torch.equal(raw(torch.cat(pieces, 1)), raw(whole))
    halves = contract_wide(x[:, :4096].contiguous(), weight[:, :4096].contiguous()) + contract_wide(
        x[:, 4096:].contiguous(), weight[:, 4096:].contiguous(), bias
    )
    assert not torch.equal(raw(halves), raw(whole)), "segments for a part alone would be seen"


def test_bias_is_added_before_the_only_rounding() -> None:
    x, weight = torch.ones(1, 1).bfloat16(), torch.full((1, 1), 256.0).bfloat16()
    assert float(linear(x, weight, torch.tensor([0.75]).bfloat16())) == 256.0
    assert float(linear(x, weight, torch.tensor([1.5]).bfloat16())) == 258.0


def test_gradients_are_those_of_float64_within_rounding() -> None:
    args = inputs.draw(SHAPE, 5, torch.float32, CPU, 2, False)
    leaves = {name: args[name].requires_grad_() for name in inputs.GRADS}
    wide = {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}
    grad = torch.randn(5, SHAPE["n"])
    mine = torch.autograd.grad(linear(**leaves), list(leaves.values()), grad)
    exact = torch.autograd.grad(reference(**wide), list(wide.values()), grad.double())
    for got, want in zip(mine, exact, strict=True):
        assert float((got - want).norm() / want.norm()) < 1e-6


def test_fake_and_autograd_are_registered_as_pytorch_wants_them() -> None:
    args = inputs.draw(SHAPE, 3, torch.float32, CPU, 3, False)
    leaves = tuple(args[name].requires_grad_() for name in ("x", "weight", "bias"))
    torch.library.opcheck(linear_op.overload, leaves)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"x": torch.zeros(2, 200, dtype=torch.int32)}, "dtype"),
        ({"x": torch.zeros(2, 199).bfloat16()}, "differ in K"),
        ({"x": torch.zeros(2, 200)}, "cast"),
        ({"weight": torch.zeros(200, 48).bfloat16().T}, "contiguous"),
        ({"weight": torch.zeros(0, 200).bfloat16(), "bias": None}, "empty"),
        ({"bias": torch.zeros(47).bfloat16()}, "bias must be"),
    ],
)
def test_a_call_outside_the_contract_is_refused_with_its_reason(change: dict[str, Any], word: str) -> None:
    args = {**inputs.draw(SHAPE, 2, torch.bfloat16, CPU, 4, False), **change}
    with pytest.raises(ValueError, match=f"samebits linear: .*{word}"):
        linear(**args)


def test_no_row_gives_no_row() -> None:
    assert linear(torch.zeros(0, 200).bfloat16(), torch.zeros(48, 200).bfloat16()).shape == (0, 48)


def test_every_row_of_the_table_is_a_choice_and_its_edges_ascend_to_every_m() -> None:
    shapes = dispatch.table()["shapes"]
    assert {f"{s['n']}x{s['k']}" for s in inputs.SHAPES} == set(shapes)
    for entries in shapes.values():
        edges = [edge for edge, _ in entries]
        assert edges[-1] is None
        assert edges[:-1] == sorted(set(edges[:-1]))
        for _, entry in entries:
            assert dispatch.parse(entry).label


def test_one_row_odd_widths_and_unaligned_pointers_never_reach_cublaslt() -> None:
    for name in dispatch.table()["shapes"]:
        N, K = map(int, name.split("x"))
        assert choose(1, N, K).triton is not None
        assert choose(700, N, K, aligned=False).triton is not None
    assert choose(4096, 4097, 4096).triton is not None
    assert choose(4096, 4096, 4093).triton is not None
    assert choose(4096).triton is None


def test_a_pinned_algorithm_is_used_only_with_the_library_it_was_measured_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublaslt, "usable", lambda problem, algo: True)
    rows_of = dispatch.table()["shapes"]["4096x4096"]
    M = next(edge for edge, entry in rows_of if entry[0] == "cublaslt" and entry[1] is not None)
    for version, pinned in ((dispatch.table()["cublaslt"], True), (1, False)):
        monkeypatch.setattr(cublaslt, "version", lambda version=version: version)
        dispatch.choose.cache_clear()
        assert (choose(M).algo is not None) == pinned
    dispatch.choose.cache_clear()


def test_a_shape_outside_the_table_takes_the_rows_of_the_nearest() -> None:
    assert choose(8, 4104, 4096) == choose(8, 4100, 4096)


def test_the_float32_linear_is_the_accumulator_that_the_other_rounds() -> None:
    args = inputs.draw(SHAPE, 5, torch.bfloat16, CPU, 3, False)
    wide = linear_float32(**args)
    assert wide.dtype == torch.float32
    assert torch.equal(raw(wide.bfloat16()), raw(linear(**args)))
    assert torch.equal(raw(wide), raw(contract_wide(**args)))
    assert bool((wide != wide.bfloat16().float()).any())


def test_the_float32_linear_has_a_kernel_of_ours_for_every_number_of_rows() -> None:
    entries = dispatch.table()["shapes"][dispatch.WIDE_ROWS]
    assert entries[-1][0] is None
    assert all(dispatch.parse(entry).triton is not None for _, entry in entries)
