"""The contracts of the row operators on CPU: order, special values, refusals, gradients, fakes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samebits.kernels.ops.lanes import aligned, lane_sum, lanes_of, sqrt, unit_of
from samebits.kernels.registry import OPERATORS, operator

ROW_OPERATORS = ("rms_norm", "silu_mul", "rotary", "embedding", "logprob", "normed_rotary")
CPU = torch.device("cpu")


def outputs(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def raw(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


def lane_sum_by_hand(x: list[float], unit: int, lanes: int) -> float:
    """The text of lanes.py, one number at a time."""

    def add(a: float, b: float) -> float:
        return float(torch.tensor(a, dtype=torch.float32) + torch.tensor(b, dtype=torch.float32))

    def fold(values: list[float]) -> float:
        while len(values) > 1:
            half = len(values) // 2
            values = [add(values[i], values[i + half]) for i in range(half)]
        return values[0]

    partial = [[0.0] * unit for _ in range(lanes)]
    for i, value in enumerate(x):
        lane, j = i // unit % lanes, i % unit
        partial[lane][j] = add(partial[lane][j], value)
    owned = [fold(units) for units in partial]
    group = min(lanes, 32)
    return fold([fold(owned[g : g + group]) for g in range(0, lanes, group)])


@settings(max_examples=25, deadline=None)
@given(
    width=st.integers(1, 300),
    lanes=st.sampled_from([1, 2, 16, 64]),
    unit=st.sampled_from([4, 8]),
    seed=st.integers(0, 2**31),
)
def test_the_lane_sum_adds_in_the_order_it_describes(width: int, lanes: int, unit: int, seed: int) -> None:
    x = torch.randn(width, generator=torch.Generator().manual_seed(seed)) * torch.logspace(-3, 3, width)
    assert float(lane_sum(x, unit, lanes)) == lane_sum_by_hand(x.tolist(), unit, lanes)


def test_the_order_matters_so_that_the_test_above_can_fail() -> None:
    x = torch.randn(4096, generator=torch.Generator().manual_seed(1))
    assert len({float(lane_sum(x, 8, lanes)) for lanes in (16, 64, 256)}) > 1


def test_lanes_depend_on_width_and_dtype_alone() -> None:
    assert [lanes_of(d, unit_of(torch.bfloat16), 256) for d in (1, 8, 9, 128, 2048, 4096)] == [1, 1, 2, 16, 256, 256]
    assert lanes_of(128, unit_of(torch.float32), 256) == 32


def test_the_square_root_is_correctly_rounded_where_torchs_is_not() -> None:
    x = torch.rand(100_003, generator=torch.Generator().manual_seed(2)) * 100
    exact = x.double().sqrt().numpy().astype("float32")
    assert (sqrt(x).numpy() == exact).all()


def test_aligned_copies_only_what_needs_it() -> None:
    whole = torch.zeros(4, 32)
    assert aligned(whole) is whole
    odd = torch.arange(132.0).view(4, 33)[:, 1:31]
    copy = aligned(odd)
    assert copy.shape == (4, 32)
    assert torch.equal(copy[:, :30], odd)
    assert copy.data_ptr() % 16 == 0


@pytest.mark.parametrize("name", ROW_OPERATORS)
def test_a_row_does_not_depend_on_its_company(name: str) -> None:
    op = operator(name)
    for shape in op.inputs.SMALL_SHAPES:
        args = op.inputs.draw(shape, 9, torch.bfloat16, CPU, 5, False)
        together = outputs(op.contract(**args))
        for row in range(9):
            alone = {k: v[row : row + 1] if k in op.inputs.ROWS and v is not None else v for k, v in args.items()}
            for whole, one in zip(together, outputs(op.contract(**alone)), strict=True):
                assert torch.equal(raw(whole[row : row + 1]), raw(one))


@pytest.mark.parametrize("name", ROW_OPERATORS)
def test_the_operator_is_its_contract_and_its_fake_tells_the_truth(name: str) -> None:
    op = operator(name)
    for dtype in op.inputs.DTYPES:
        args = op.inputs.draw(op.inputs.SMALL_SHAPES[0], 4, dtype, CPU, 6, False)
        real = outputs(op.op(**args))
        for a, b in zip(real, outputs(op.contract(**args)), strict=True):
            assert torch.equal(raw(a), raw(b))
        with torch._subclasses.FakeTensorMode() as mode:
            fake_args = {k: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for k, v in args.items()}
            fake = outputs(op.op(**fake_args))
        for f, r in zip(fake, real, strict=True):
            assert (f.shape, f.dtype, f.stride()) == (r.shape, r.dtype, r.stride())


@pytest.mark.parametrize("name", ROW_OPERATORS)
def test_an_empty_batch_gives_empty_outputs(name: str) -> None:
    op = operator(name)
    args = op.inputs.draw(op.inputs.SMALL_SHAPES[0], 2, torch.float32, CPU, 7, False)
    none = {k: v[:0] if k in op.inputs.ROWS and v is not None else v for k, v in args.items()}
    for real, full in zip(outputs(op.op(**none)), outputs(op.op(**args)), strict=True):
        assert real.shape == (0, *full.shape[1:])


def test_every_nan_is_the_same_nan() -> None:
    odd = torch.tensor([0x7FA12345, -0x3FFFFF], dtype=torch.int32).view(
        torch.float32
    )  # a signalling and a negative payload
    x = torch.ones(1, 64)
    x[0, :2] = odd
    y = operator("rms_norm").op(x, torch.ones(64), 1e-6)
    assert set(y.view(torch.int32).flatten().tolist()) == {0x7FC00000}
    z = operator("silu_mul").op(x, torch.ones(1, 64))
    assert set(z.view(torch.int32)[0, :2].tolist()) == {0x7FC00000}


def test_the_norm_works_on_the_unrounded_sum() -> None:
    """One bf16 step below half an ulp of the sum: rounding first would lose it."""
    x, residual = torch.full((1, 64), 256.0).bfloat16(), torch.full((1, 64), 0.75).bfloat16()
    residual[0, ::2] = 0
    y, s = operator("rms_norm").op(x, torch.ones(64).bfloat16(), 1e-6, residual)
    assert s.unique().tolist() == [256.0]
    wide = x.float() + residual.float()
    unrounded, _ = operator("rms_norm").op(wide, torch.ones(64), 1e-6, torch.zeros_like(wide))
    assert torch.equal(y, unrounded.bfloat16())


def test_temperature_one_is_no_temperature_and_others_divide_first() -> None:
    op = operator("logprob")
    args = op.inputs.draw(op.inputs.SMALL_SHAPES[1], 3, torch.float32, CPU, 8, False)
    plain = op.op(args["logits"], args["targets"])
    assert torch.equal(raw(plain), raw(op.op(args["logits"], args["targets"], 1.0)))
    assert torch.equal(
        raw(op.op(args["logits"] / 0.7, args["targets"])), raw(op.op(args["logits"], args["targets"], 0.7))
    )


def test_masked_tokens_change_no_logprob() -> None:
    op = operator("logprob")
    logits = torch.randn(2, 9000, generator=torch.Generator().manual_seed(9))
    targets = torch.tensor([5, 4100])
    padded = torch.nn.functional.pad(logits, (0, 3000), value=float("-inf"))
    assert torch.equal(raw(op.op(logits, targets)), raw(op.op(padded, targets)))


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("rms_norm", {"x": lambda x: x.double()}, "float64"),
        ("rms_norm", {"weight": lambda w: w[:-1].clone()}, "needs a weight"),
        ("rms_norm", {"weight": lambda w: w.float().half()}, "cast one of them"),
        ("rms_norm", {"x": lambda x: torch.cat([x, x], 1)[:, ::2]}, "last dim must be contiguous"),
        ("silu_mul", {"up": lambda u: u[:, :-1]}, "must have one shape"),
        ("rotary", {"positions": lambda p: p + 512}, "leave the cache"),
        ("rotary", {"positions": lambda p: p.float()}, "int32 or int64"),
        ("rotary", {"cache": lambda c: c[:, :-1].clone()}, "R even"),
        ("embedding", {"ids": lambda i: i - 100}, "leave the table"),
        ("embedding", {"table": lambda t: t.t()}, "contiguous"),
        ("logprob", {"targets": lambda t: t + 100_000}, "leave the vocabulary"),
        ("logprob", {"temperature": lambda t: t.double()}, "temperature must be float32"),
        ("logprob", {"logits": lambda z: z.double()}, "float64"),
    ],
)
def test_a_call_outside_the_contract_is_an_error(name: str, change: dict[str, Any], says: str) -> None:
    op = operator(name)
    args = op.inputs.draw(op.inputs.SMALL_SHAPES[0], 3, torch.bfloat16, CPU, 10, False)
    for key, edit in change.items():
        args[key] = edit(args[key])
    with pytest.raises((ValueError, RuntimeError), match=says):
        op.op(**args)


def test_a_temperature_of_zero_is_an_error() -> None:
    with pytest.raises(ValueError, match="above 0"):
        operator("logprob").op(torch.zeros(1, 4), torch.zeros(1, dtype=torch.long), 0.0)


def test_an_unknown_operator_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"attention.*embedding, linear"):
        operator("norm")


def test_every_registered_folder_has_the_form() -> None:
    for name in OPERATORS:
        op = operator(name)
        for part in (op.reference, op.replaced, op.contract, op.op):
            assert callable(part)
        assert op.inputs.SHAPES
        assert op.inputs.SMALL_SHAPES
        assert op.inputs.DTYPES
