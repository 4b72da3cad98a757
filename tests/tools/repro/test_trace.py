"""Recording operators and running them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F

from samebits.tools.repro.record import TraceRecorder
from samebits.tools.repro.replay import cut, replay
from samebits.tools.repro.storage import digest
from samebits.tools.repro.trace import read_trace, write_trace
from samebits.tools.schema.artifacts.trace import Port
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


def block(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A norm with an in-place residual, a linear, and a split whose halves share memory."""
    residual.add_(x)
    y = residual.float()
    y = (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight
    gate, up = F.linear(y, w).chunk(2, -1)
    gate.mul_(2)
    return F.silu(gate) * up


@pytest.fixture
def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(0)
    return tuple(torch.randn(*shape, generator=make).bfloat16() for shape in ((5, 32), (5, 32), (32,), (16, 32)))  # type: ignore[return-value]


@pytest.mark.parametrize("inference", [False, True])
def test_a_trace_replays_bit_for_bit_from_its_file(
    tensors: tuple[torch.Tensor, ...], inference: bool, tmp_path: Path
) -> None:
    with torch.inference_mode(inference), torch.no_grad(), TraceRecorder() as recorder:
        out = block(*(tensor.clone() for tensor in tensors))
    number = recorder.find(out)
    assert number is not None
    write_trace(tmp_path, *recorder.finish())
    done = replay(*read_trace(tmp_path))
    assert digest(done.values[number]) == digest(out)
    assert done.wrong == []


def test_a_replay_names_the_first_operator_with_other_bits(tensors: tuple[torch.Tensor, ...]) -> None:
    with torch.no_grad(), TraceRecorder(where=lambda: "model.block") as recorder:
        block(*tensors)
    trace, data = recorder.finish()
    number = next(value.id for value in trace.values if value.shape == (16, 32))
    other = tensors[3].clone()
    other[0, 0] += 1
    assert replay(trace, data, replace={number: other}).wrong[:2] == [
        "model.block/aten.t.default#0:out0", "model.block/aten.mm.default#0:out0",
    ]  # fmt: skip


def test_a_region_is_cut_out_with_the_bits_it_read(tensors: tuple[torch.Tensor, ...]) -> None:
    with torch.no_grad(), TraceRecorder() as recorder:
        out = block(*tensors)
    trace, data = recorder.finish()
    region = cut(trace, data, [trace.port("/aten.silu.default#0:out0")], [trace.port("/aten.mm.default#0:in0")])
    assert [call.op for call in region.trace.calls] == [
        "aten.t.default", "aten.mm.default", "aten.split.Tensor", "aten.mul_.Tensor", "aten.silu.default",
    ]  # fmt: skip
    assert replay(region.trace, region.tensors).wrong == []
    assert region.inputs[0] is not None
    assert out.shape == (5, 8)


def test_an_in_place_output_of_an_in_place_input_is_cut_at_its_moment() -> None:
    x = torch.ones(4)
    with torch.no_grad(), TraceRecorder() as recorder:
        x.mul_(3)
        x.add_(1)
        x.mul_(5)
    trace, data = recorder.finish()
    region = cut(trace, data, [Port(value=0, place=1)], [Port(value=0, place=1)])
    assert [call.op for call in region.trace.calls] == ["aten.add_.Tensor"]
    assert replay(region.trace, region.tensors).values[region.outputs[0]].tolist() == [4.0] * 4


def test_tensors_that_share_memory_share_it_in_the_replay() -> None:
    whole = torch.arange(8.0)
    left, right = whole[:4], whole[2:6]
    with torch.no_grad(), TraceRecorder() as recorder:
        left.add_(10)
        out = right * 1
    number = recorder.find(out)
    trace, data = recorder.finish()
    assert number is not None
    assert replay(trace, data).values[number].tolist() == [12.0, 13.0, 4.0, 5.0]


def test_a_large_pool_is_stored_by_its_nonzero_pages() -> None:
    pool = torch.zeros(3, 1 << 21, dtype=torch.float32)
    pool[1, 7] = -0.0
    pool[2, -1] = 5
    with torch.no_grad(), TraceRecorder() as recorder:
        out = pool[1:, ::7] * 1
        last = pool[2, -1] * 1
    number, end = recorder.find(out), recorder.find(last)
    trace, data = recorder.finish()
    assert sum(tensor.numel() for tensor in data.values()) < 1 << 16
    done = replay(trace, data)
    assert number is not None
    assert end is not None
    assert done.wrong == []
    assert done.values[end].item() == 5


def test_a_missing_or_foreign_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no trace here"):
        read_trace(tmp_path)
    with torch.no_grad(), TraceRecorder() as recorder:
        torch.ones(2).add_(1)
    write_trace(tmp_path, *recorder.finish())
    text = tmp_path / "trace-0.json"
    text.write_text(text.read_text().replace('"format":1', '"format":9'))
    with pytest.raises(UserError, match="trace format 9"):
        read_trace(tmp_path)
