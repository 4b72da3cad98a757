"""Linear where the contract cuts K into segments, on CPU: the rule, the contract against loops of its own, interpreted
kernels, the table, the gate.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kernels.ops.heavy import interpreted, raw, unequal_rows

from samebits.kernels.ops import rows
from samebits.kernels.ops.linear import arrivals, cublaslt, dispatch, inputs
from samebits.kernels.ops.linear.op import linear, linear_float32
from samebits.kernels.ops.linear.segments import length, segments
from samebits.tools.gate.candidate.runner import run_gate, target_of

CPU = torch.device("cpu")
SHAPE = {"n": 3, "k": 8704, "bias": 1}
SHORT_LAST = {"n": 3, "k": 8300, "bias": 1}
WAYS = {*dispatch.TRITON_WAYS, "batched", "hopper"}
SINGLE = {"chain", "hopper", "walk tma"}
"""Of one segment."""
CANDIDATE = """
import torch


def run(x, weight, bias=None):
    k = weight.shape[1]
    size = -(-k // (COUNT * 128)) * 128 if k > 8192 else k
    total = None
    for first in range(0, k, size):
        x_LM, w_LN = (t.float().reshape(-1, k)[:, first : first + size].T.contiguous() for t in (x, weight))
        sums = torch.zeros(x_LM.shape[1], w_LN.shape[1])
        for a, b in zip(x_LM, w_LN):
            sums = sums + a[:, None] * b[None, :]
        total = sums if total is None else total + sums
    total = total if bias is None else total + bias.float()
    return total.to(x.dtype).reshape(*x.shape[:-1], weight.shape[0])
"""
TOML = """
operator = "linear"
name = "loops"
kind = "pytorch"
source = "kernel.py"
devices = ["cpu"]
dtypes = ["bfloat16"]
shapes = [{ n = 16, k = 8448, bias = 1 }, { n = 2, k = 16, bias = 0 }]
"""


def test_the_number_of_segments_and_their_length_follow_k_alone() -> None:
    assert [segments(k) for k in (1, 4096, 8192, 8193, 11008, 12288, 28672)] == [1, 1, 1, 4, 4, 4, 4]
    assert [length(k) for k in (100, 8192, 8193, 11008, 12288, 14336)] == [100, 8192, 2176, 2816, 3072, 3584]
    for k in (*range(8193, 9000), 11008, 12288, 28672):
        assert length(k) % 128 == 0
        assert 3 * length(k) < k <= 4 * length(k), "four segments, none empty"
    long = {f"{s['n']}x{s['k']}" for s in inputs.SHAPES if segments(s["k"]) > 1}
    assert long == {"512x12288", "4096x12288", "4096x14336"}


def by_loops(args: dict[str, Any], size: int, order: tuple[int, ...]) -> torch.Tensor:
    """The sums of segments of `size` by NumPy, one product at a time, folded in `order`; then the bias."""
    x_MK, w_NK = args["x"].float().numpy(), args["weight"].float().numpy()
    sums = []
    for s in range(len(order)):
        acc = np.zeros((len(x_MK), len(w_NK)), np.float32)
        for k in range(s * size, min((s + 1) * size, x_MK.shape[1])):
            acc = acc + x_MK[:, k, None] * w_NK[None, :, k]
        sums.append(acc)
    total = sums[order[0]]
    for s in order[1:]:
        total = total + sums[s]
    return torch.from_numpy(total + args["bias"].float().numpy())


@pytest.mark.parametrize(("shape", "size"), [(SHAPE, 2176), (SHORT_LAST, 2176)])
def test_the_contract_folds_the_chains_of_four_segments_in_ascending_order(shape: dict[str, int], size: int) -> None:
    args = inputs.draw(shape, 16, torch.bfloat16, CPU, 1, False)
    mine = linear_float32(**args)
    assert torch.equal(raw(mine), raw(by_loops(args, size, (0, 1, 2, 3))))
    others = ((size, (3, 2, 1, 0)), (size, (0, 2, 1, 3)), (size - 16, (0, 1, 2, 3)), (2 * size, (0, 1)), (9000, (0,)))
    for other, order in others:
        assert not torch.equal(raw(mine), raw(by_loops(args, other, order))), (other, order)
    assert torch.equal(raw(mine.bfloat16()), raw(linear(**args)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("parts", [2, 3, 24])
def test_a_long_weight_in_parts_or_merged_has_the_bits_of_the_whole(parts: int, dtype: torch.dtype) -> None:
    args = inputs.draw({"n": 24, "k": 8448, "bias": 1}, 5, dtype, CPU, 3, False)
    x, weight, bias = args["x"], args["weight"], args["bias"]
    whole = linear_float32(x, weight, bias)  # not rounded: every bit of the fold is seen
    pieces = [linear_float32(x, w, b) for w, b in zip(weight.chunk(parts), bias.chunk(parts), strict=True)]
    assert torch.equal(raw(torch.cat(pieces, 1)), raw(whole))
    merged = linear_float32(x, torch.cat([weight, -weight]), torch.cat([bias, bias]))
    assert torch.equal(raw(merged[:, :24]), raw(whole))
    # What a shard of K = 8192 (one segment) would add up to is other bits: K is not to be cut.
    halves = [
        linear_float32(x[:, part].contiguous(), weight[:, part].contiguous())
        for part in (slice(4224), slice(4224, None))
    ]
    assert not torch.equal(raw(halves[0] + halves[1] + bias.float()), raw(whole))


def test_the_interpreted_kernels_have_the_bits_of_the_contract_and_every_planted_order_has_others() -> None:
    found = interpreted("linear_segments")
    assert found["integers"]["compared"] > 1000
    assert found["integers"]["wrong"] == 0
    assert found["integers"]["planted"] > 6
    assert found["integers"]["unsettled"] == 0
    assert found["signs of zero"] == 0
    assert found["miscounted"] > 0
    orders = found["orders"]
    right = {name: count for name, count in orders.items() if not name.startswith("planted")}
    assert right == dict.fromkeys(("contract", "fold", *dispatch.TRITON_WAYS), 0)
    planted = {name: count for name, count in orders.items() if name.startswith("planted")}
    assert len(planted) == 3 + len(dispatch.TRITON_WAYS)
    assert all(planted.values()), planted


def test_a_row_keeps_its_bits_in_any_company_and_number_of_rows() -> None:
    where = (SHAPE, torch.bfloat16, CPU, False)
    for groups in (
        rows.companies(inputs.draw, inputs.ROWS, *where),
        rows.sweep(inputs.draw, inputs.ROWS, *where, dense=5, largest=32),
    ):
        compared, wrong = unequal_rows(groups, linear)
        assert compared > 20
        assert wrong == 0


def choose(M: int, N: int = 512, K: int = 12288, **changes: Any) -> dispatch.Choice:
    given = {"dtype": torch.bfloat16, "aligned": True, "has_bias": False, "device": 0, **changes}
    return dispatch.choose(M, N, K, **given)


def test_a_long_k_runs_on_nothing_that_takes_it_in_one_chain_and_a_short_one_on_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cublaslt, "version", lambda: 1)
    dispatch.choose.cache_clear()
    for N, K in ((512, 12288), (4096, 14336), (2048, 11008), (640, 25600), (17, 8200), (1, 8193), (5000, 16392)):
        for M in (1, 2, 8, 33, 130, 257, 700, 9000):
            for changes in ({}, {"aligned": False}, {"dtype": torch.float32}, {"has_bias": True}):
                choice = choose(M, N, K, **changes)
                assert choice.way in WAYS
                assert choice.way != "batched" or (M > 1 and N % 8 == 0 and 4 * length(K) == K)
    assert {choose(M, N, 8192).way for M in (1, 300) for N in (8, 512, 4096)} <= SINGLE
    assert {choose(M, 512, 8192, aligned=False).way for M in (1, 300)} == {"chain"}
    dispatch.choose.cache_clear()


def test_the_rows_of_a_shape_name_only_ways_of_its_kind() -> None:
    for name, entries in dispatch.table()["shapes"].items():
        long = segments(int(name.split("x")[1])) > 1
        for _, entry in entries:
            assert dispatch.parse(entry).way in (WAYS if long else SINGLE)


def test_an_unknown_kind_in_the_table_is_refused() -> None:
    with pytest.raises(AssertionError):
        dispatch.parse(["stroll", 16, 16, 512, 2, 3, 0])


def test_counters_of_captured_launches_are_never_handed_out_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The streams and captures are made up: there is no GPU here."""
    capturing, stream = [False], [7]
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(arrivals, "_of_stream", {})
    monkeypatch.setattr(arrivals, "_captured", {})
    monkeypatch.setattr(arrivals, "CAPTURED", 100)
    monkeypatch.setattr(arrivals, "_zeros", lambda device, count: torch.zeros(count, dtype=torch.int32))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: threading.Event())
    monkeypatch.setattr(threading.Event, "synchronize", lambda self: None, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: stream[0], raising=False)

    def place(tiles: int) -> range | None:
        found = arrivals.arrivals(gpu, tiles)
        return None if found is None else range(found.data_ptr(), found.data_ptr() + 4 * tiles, 4)

    capturing[0] = True
    assert place(8) is None, "no memory outside a graph's pool yet"
    capturing[0] = False
    first = place(8)
    assert place(8) == first, "one stream runs its launches one after the other"
    stream[0] = 8
    assert first is not None
    other = place(8)
    assert other is not None
    assert not set(other) & set(first)
    capturing[0] = True
    taken = [place(30) for _ in range(4)]
    assert taken[3] is None, "used up: the second launch folds"
    places = [at for some in (first, other, *taken[:3]) if some is not None for at in some]
    assert len(places) == len(set(places)) == 16 + 90
    assert arrivals.used() == 96
    arrivals.release()
    assert place(30) == taken[0]


@pytest.mark.parametrize(("count", "status"), [pytest.param(4, "green", marks=pytest.mark.slow), (2, "red")])
def test_the_gate_passes_four_segments_and_refuses_another_number(count: int, status: str, tmp_path: Path) -> None:
    folder = tmp_path / "candidate"
    folder.mkdir()
    (folder / "candidate.toml").write_text(TOML, encoding="utf-8")
    (folder / "kernel.py").write_text(CANDIDATE.replace("COUNT", str(count)), encoding="utf-8")
    report, log = run_gate(target_of(str(folder)), tmp_path / "run", limit_s=1000)
    outcomes = {leg.name: leg.outcome for leg in report.legs}
    assert outcomes["accuracy"].status == "green", log
    assert outcomes["bits"].status == status, outcomes["bits"]
    assert report.verdict.kind == ("passed" if status == "green" else "stopped"), (report.verdict, log)


def test_the_hopper_kernel_is_for_hopper_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ["hopper", 2, 256, 64, 3, 8, 1, 1]
    choice = dispatch.parse(entry)
    assert choice.way == "hopper"
    assert choice.label == "hopper 128x256x64 s3 g8 skew 1 shared"
    table = {"cublaslt": 1, "shapes": {"512x12288": [[None, entry]]}}
    monkeypatch.setattr(dispatch, "table", lambda: table)
    for is_hopper in (True, False):
        monkeypatch.setattr(dispatch, "_is_hopper", lambda device, is_hopper=is_hopper: is_hopper)
        dispatch.choose.cache_clear()
        dispatch._nearest.cache_clear()
        assert (choose(700) == choice) == is_hopper
        assert choose(700, aligned=False).way == "walk"
        assert choose(700, K=14336) == choose(700)
    entry[2:5] = [32, 256, 4]  # blocks of 256
    monkeypatch.setattr(dispatch, "_is_hopper", lambda device: True)
    dispatch.choose.cache_clear()
    assert [choose(700, K=K).way for K in (12288, 11008, 8704, 14336)] == ["hopper"] * 4
    used = [choose(700, K=K) for K in (12288, 11008, 8704, 14336)]
    assert [choice.hopper == tuple(entry[1:]) for choice in used] == [True, True, False, True]
    assert used[2] == dispatch.fallback(700, 8704, True)
    for K in range(8200, 8200 + 8 * 512, 8):
        assert dispatch._whole_blocks(dispatch._hopper_config(dispatch.MANY_HOPPER), K)
    dispatch.choose.cache_clear()
    dispatch._nearest.cache_clear()


def test_matrices_of_one_kind_of_boxes_are_one_specialization_of_triton() -> None:
    pytest.importorskip("triton")
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.compiler import BaseBackend

    from samebits.kernels.ops.boxes import Boxes, SwizzledBoxes

    for form in (Boxes, SwizzledBoxes):
        seen: dict[Any, set[str]] = {}
        for dtype in (torch.bfloat16, torch.float16):
            for height, columns in ((1, 4096), (300, 12288), (17, 8200)):
                for box_rows, box_columns in ((64, 64), (16, 128), (8, 256)):
                    base = torch.zeros(height, columns, dtype=dtype)
                    box = form(base, height, columns, columns, (dtype, box_rows, box_columns))
                    found = box.descriptor()
                    assert (found.base is base, list(found.shape), list(found.strides)) == (
                        True,
                        [height, columns],
                        [columns, 1],
                    )
                    word = native_specialize_impl(BaseBackend, found, False, True, True)
                    seen.setdefault(box.kind, set()).add(str(word))
        assert len(seen) == len(set().union(*seen.values())) == 6
        assert all(len(words) == 1 for words in seen.values())
