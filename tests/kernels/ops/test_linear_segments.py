"""Linear where the contract cuts K into segments, on CPU: the rule, the contract against loops of its own, interpreted
kernels, the table, the gate.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kernels.ops.heavy import interpreted, raw, unequal_rows

from samebits.kernels.ops import rows
from samebits.kernels.ops.linear import cublaslt, dispatch, inputs
from samebits.kernels.ops.linear.op import linear, linear_float32
from samebits.kernels.ops.linear.segments import segments
from samebits.tools.gate.candidate.runner import run_gate, target_of

CPU = torch.device("cpu")
SHAPE = {"n": 3, "k": 8192, "bias": 1}
WAYS = {"split", "walk", "split tma", "walk tma", "batch"}
CANDIDATE = """
import torch


def run(x, weight, bias=None):
    n, k = weight.shape
    count = COUNT if k >= 8192 else 1
    rows = [t.float().reshape(t.numel() // k, count, k // count) for t in (x, weight)]
    x_LSM, w_LSN = (t.permute(2, 1, 0).contiguous() for t in rows)
    sums = torch.zeros(count, x_LSM.shape[2], n)
    for a, b in zip(x_LSM, w_LSN):
        sums = sums + a[:, :, None] * b[:, None, :]
    total = sums[0]
    for one in sums[1:]:
        total = total + one
    total = total if bias is None else total + bias.float()
    return total.to(x.dtype).reshape(*x.shape[:-1], n)
"""
TOML = """
operator = "linear"
name = "loops"
kind = "pytorch"
source = "kernel.py"
devices = ["cpu"]
dtypes = ["bfloat16"]
shapes = [{ n = 16, k = 8192, bias = 1 }, { n = 2, k = 16, bias = 0 }]
"""


def test_the_number_of_segments_follows_outputs_and_k_alone() -> None:
    assert segments(512, 12288) == segments(1, 8192) == segments(1024, 28672) == 4
    assert segments(1025, 12288) == segments(512, 8191) == segments(512, 4096) == 1
    assert segments(512, 8192 + 16) == 1  # four segments would not be whole steps of 16
    assert {f"{s['n']}x{s['k']}" for s in inputs.SHAPES if segments(s["n"], s["k"]) > 1} == {"512x12288"}


def by_loops(args: dict[str, Any], count: int, order: tuple[int, ...]) -> torch.Tensor:
    """The sums of `count` segments of K by NumPy, one product at a time, folded in `order`; then the bias."""
    x_MK, w_NK = args["x"].float().numpy(), args["weight"].float().numpy()
    size = x_MK.shape[1] // count
    sums = []
    for s in range(count):
        acc = np.zeros((len(x_MK), len(w_NK)), np.float32)
        for k in range(s * size, (s + 1) * size):
            acc = acc + x_MK[:, k, None] * w_NK[None, :, k]
        sums.append(acc)
    total = sums[order[0]]
    for s in order[1:]:
        total = total + sums[s]
    return torch.from_numpy(total + args["bias"].float().numpy())


def test_the_contract_folds_the_chains_of_four_segments_in_ascending_order() -> None:
    args = inputs.draw(SHAPE, 16, torch.bfloat16, CPU, 1, False)
    mine = linear_float32(**args)
    assert torch.equal(raw(mine), raw(by_loops(args, 4, (0, 1, 2, 3))))
    for count, order in ((4, (3, 2, 1, 0)), (4, (0, 2, 1, 3)), (2, (0, 1)), (1, (0,)), (8, tuple(range(8)))):
        assert not torch.equal(raw(mine), raw(by_loops(args, count, order))), (count, order)
    assert torch.equal(raw(mine.bfloat16()), raw(linear(**args)))


def test_the_interpreted_kernels_have_the_bits_of_the_contract_and_every_planted_order_has_others() -> None:
    found = interpreted("linear_segments")
    assert found["integers"]["compared"] > 1000
    assert found["integers"]["wrong"] == 0
    assert found["integers"]["planted"] > 0
    assert found["zero signs"] == 0
    orders = found["orders"]
    right = {name: count for name, count in orders.items() if not name.startswith("planted")}
    assert right == dict.fromkeys(("contract", "fold", "walk", "split", "walk tma", "split tma"), 0)
    planted = {name: count for name, count in orders.items() if name.startswith("planted")}
    assert len(planted) == 5
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


def test_a_shape_with_segments_runs_on_nothing_that_takes_k_in_one_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublaslt, "version", lambda: 1)
    dispatch.choose.cache_clear()
    for N, K in ((512, 12288), (640, 25600), (17, 8192), (1, 8192)):
        for M in (1, 2, 8, 33, 700, 9000):
            for changes in ({}, {"aligned": False}, {"dtype": torch.float32}, {"has_bias": True}):
                choice = choose(M, N, K, **changes)
                assert choice.way in WAYS
                assert choice.way != "batch" or (M > 1 and N % 8 == 0)
    assert choose(8, 512, 4096).way == choose(8, 1032, 12288).way == "chain"
    dispatch.choose.cache_clear()


def test_the_tables_of_both_kinds_name_only_ways_of_their_kind() -> None:
    table = dispatch.table()
    for part, ways in (("shapes", {"chain"}), ("segments", WAYS)):
        for name, entries in table[part].items():
            edges = [edge for edge, _ in entries]
            assert edges[-1] is None
            assert edges[:-1] == sorted(set(edges[:-1]))
            assert {dispatch.parse(entry).way for _, entry in entries} <= ways
            assert part == "shapes" or segments(*map(int, name.split("x"))) > 1
    assert {f"{s['n']}x{s['k']}" for s in inputs.SHAPES if segments(s["n"], s["k"]) > 1} == set(table["segments"])


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
