"""Operator level: dispatcher calls, written arguments, Triton launches, and the replay that proves a capture sound."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from samebits.tools.align.taps import Taps
from samebits.tools.capture.recorder import Recorder
from samebits.tools.capture.rows import PassRows
from samebits.tools.diff.bits import next_ulp
from samebits.tools.schema.artifacts.capture import Replay
from samebits.tools.schema.sites import CapturePlan

if TYPE_CHECKING:
    from conftest import Runs

calls = {"unsteady": 0}


@torch.library.custom_op("samebits_test::scale_add", mutates_args={"out", "residual"})
def scale_add(out: torch.Tensor, x: torch.Tensor, residual: torch.Tensor, scale: float) -> None:
    residual.add_(x)
    out.copy_(residual * scale)


@torch.library.custom_op("samebits_test::unsteady", mutates_args=())
def unsteady(x: torch.Tensor) -> torch.Tensor:
    calls["unsteady"] += 1
    return x + calls["unsteady"]


class Fused(torch.nn.Module):
    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        scale_add(out, x, residual, 2.0)
        return out


class Unsteady(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return unsteady(x)


class Stateful(torch.nn.Module):
    def forward(self, x: torch.Tensor, cache: object) -> torch.Tensor:
        return x * 2


class Fixed:
    """Row map of one sequence of T tokens."""

    def __init__(self, tokens: int) -> None:
        self.rows = PassRows(
            torch.zeros(tokens, dtype=torch.int32), torch.arange(tokens, dtype=torch.int32), None, None
        )

    def current(self) -> PassRows:
        return self.rows


def capture(module: torch.nn.Module, *inputs: object, folder: Path, **plan: object) -> Taps:
    chosen = CapturePlan(level="operator", store="tensors", **plan)  # type: ignore[arg-type]
    tokens = next(t.shape[0] for t in inputs if isinstance(t, torch.Tensor))
    with torch.no_grad(), Recorder(module, Fixed(tokens), chosen) as recorder:
        module(*inputs)
    recorder.write(folder / "capture")
    return Taps.open(folder / "capture")


def sites(taps: Taps) -> list[str]:
    return [str(tap.site) for tap in taps.manifest.taps]


def replays(taps: Taps) -> dict[str, Replay]:
    return {str(replay.site): replay for replay in taps.manifest.replays}


def test_operators_are_named_by_the_deepest_module(runs: Runs, tmp_path: Path) -> None:
    with Recorder(runs.model, runs, CapturePlan(level="operator", modules=("layers.1",))) as recorder:
        runs.decode([0, 1, 2, 3])
    recorder.write(tmp_path / "capture")
    taps = Taps.open(tmp_path / "capture")
    found = sites(taps)
    assert "layers.1.up/aten.mm.default#0:in0" in found
    assert "layers.1/aten.remainder.Scalar#0:out0" in found
    assert "layers.0.shift@1/aten.add.Tensor#0:out0" in found
    assert not any(name.startswith("layers.0.up") for name in found)
    weight = taps.tap("layers.1.up/aten.mm.default#0:in1")
    assert (weight.rowset, weight.rows, weight.shape, weight.strides) == (None, 0, (8, 16), (1, 8))
    assert taps.tap("layers.1.up/aten.mm.default#0:out0").digest == taps.tap("layers.1.up:out0").digest
    assert any("views move no bits" in line for line in taps.manifest.untapped)


def test_a_plan_for_all_modules_sees_the_root_too(runs: Runs, tmp_path: Path) -> None:
    with Recorder(runs.model, runs, CapturePlan(level="operator")) as recorder:
        runs.flat([(0, 0, 5)])
    recorder.write(tmp_path / "capture")
    found = sites(Taps.open(tmp_path / "capture"))
    assert "/aten.index.Tensor#0:out0" in found
    assert "embed/aten.embedding.default#0:out0" in found


def test_in_place_operators_are_recorded_before_and_after(runs: Runs, tmp_path: Path) -> None:
    with Recorder(
        runs.model, runs, CapturePlan(level="operator", store="tensors", modules=("layers.0.norm",))
    ) as recorder:
        runs.flat([(1, 0, 9)], head=False)
    recorder.write(tmp_path / "capture")
    taps = Taps.open(tmp_path / "capture")
    name = "layers.0.norm/aten.add_.Tensor#0"
    assert torch.equal(
        taps.value(f"{name}:out0"), taps.value(f"{name}:in0") + runs.model.layers[0].norm.weight.detach()
    )
    assert f"{name}:mut.self" not in sites(taps)


def test_written_arguments_are_outputs_and_unwritten_memory_is_no_input(tmp_path: Path) -> None:
    x, residual = torch.randn(6, 4), torch.randn(6, 4)
    before = residual.clone()
    taps = capture(Fused(), x, residual, folder=tmp_path, replay=True)
    name = "/samebits_test.scale_add.default#0"
    assert [site.removeprefix(name) for site in sites(taps) if site.startswith(name)] == [
        ":in1",
        ":in2",
        ":scalars",
        ":mut.out",
        ":mut.residual",
    ]
    assert torch.equal(taps.value(f"{name}:in2"), before)
    assert torch.equal(taps.value(f"{name}:mut.residual"), before + x)
    assert torch.equal(taps.value(f"{name}:mut.out"), (before + x) * 2)
    assert replays(taps)[f"{name}:out0"].equal
    assert replays(taps)[":out0"].equal
    text = taps.file.get_tensor(f"whole.{taps.numbers[f'{name}:scalars']}").numpy().tobytes().decode()
    assert text == "(['T', 'T', 'T', 2.0], {})"


@pytest.mark.parametrize("inference", [False, True])
def test_a_cast_is_an_operator_in_every_mode(tmp_path: Path, inference: bool) -> None:
    """Inference mode shows `to` whole, and its schema calls it a view."""

    class Cast(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(torch.bfloat16)

    with torch.inference_mode(inference):
        taps = capture(Cast(), torch.randn(4, 2), folder=tmp_path, replay=True)
    casts = [tap for tap in taps.manifest.taps if tap.site.op and tap.site.port in ("in0", "out0")]
    assert [(tap.site.port, tap.dtype, tap.rows) for tap in casts] == [("in0", "float32", 4), ("out0", "bfloat16", 4)]
    assert all(replay.equal for replay in taps.manifest.replays)


def test_scalars_are_part_of_the_inputs(tmp_path: Path) -> None:
    class Plus(torch.nn.Module):
        amount = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.amount

    module, x = Plus(), torch.randn(3, 2)
    one = capture(module, x, folder=tmp_path / "one").tap("/aten.add.Tensor#0:scalars").digest
    module.amount = 1.5
    assert capture(module, x, folder=tmp_path / "two").tap("/aten.add.Tensor#0:scalars").digest != one


def test_every_operator_of_the_toy_gives_its_bits_again(runs: Runs, tmp_path: Path) -> None:
    with Recorder(
        runs.model, runs, CapturePlan(level="operator", modules=("layers.0.up", "layers.0.norm", "head"), replay=True)
    ) as recorder:
        runs.flat([(1, 0, 9), (0, 0, 5)])
    done = {str(replay.site): replay for replay in recorder.write(tmp_path / "capture").replays}
    assert set(done) == {
        "layers.0.up:out0",
        "layers.0.up/aten.mm.default#0:out0",
        "layers.0.norm:out0",
        "layers.0.norm/aten.add_.Tensor#0:out0",
        "head:out0",
        "head/aten.mm.default#0:out0",
    }
    assert all(replay.equal and replay.calls == 1 and not replay.reason for replay in done.values())


def test_no_site_leaves_the_replays_alone(runs: Runs, tmp_path: Path) -> None:
    plan = CapturePlan(level="operator", modules=("layers.0.up", "layers.0.norm", "head"), replay=True)
    manifests = []
    for name, sites in (("all", None), ("none", ())):
        with Recorder(runs.model, runs, plan.model_copy(update={"sites": sites})) as recorder:
            runs.flat([(1, 0, 9), (0, 0, 5)])
        manifests.append(recorder.write(tmp_path / name))
    every, none = manifests
    assert every.taps
    assert not none.taps
    assert none.replays == every.replays
    assert every.replays
    assert Taps.open(tmp_path / "none").manifest == none


def test_an_operator_that_writes_a_weight_is_run_again_on_copies(tmp_path: Path) -> None:
    class Shifts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.arange(6.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept[1:].add_(self.kept[:-1].clone())
            return x + self.kept

    module = Shifts()
    taps = capture(module, torch.ones(3, 6), folder=tmp_path, replay=True)
    assert module.kept.tolist() == [0.0, 1.0, 3.0, 5.0, 7.0, 9.0]
    assert replays(taps)["/aten.add_.Tensor#0:out0"].equal
    assert replays(taps)["/aten.add.Tensor#0:out0"].equal


def test_an_operator_that_depends_on_more_than_its_inputs_fails_the_replay(tmp_path: Path) -> None:
    taps = capture(Unsteady(), torch.randn(4, 2), folder=tmp_path, replay=True)
    operator = replays(taps)["/samebits_test.unsteady.default#0:out0"]
    assert not operator.equal
    assert operator.reason == "1 of 1 calls gave other bits"
    assert not replays(taps)[":out0"].equal


def test_a_replay_on_other_inputs_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: copies that are one ulp away from what went in."""
    from samebits.tools.capture import replay

    class InPlace(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1)

    assert replays(capture(InPlace(), torch.full((3, 2), 8.0), folder=tmp_path / "a", replay=True))[":out0"].equal

    def late(tensor: torch.Tensor) -> torch.Tensor:
        return next_ulp(tensor.detach().clone())

    monkeypatch.setattr(replay, "copy_strided", late)
    assert not replays(capture(InPlace(), torch.full((3, 2), 8.0), folder=tmp_path / "b", replay=True))[":out0"].equal


def test_what_may_hold_state_is_not_run_again(tmp_path: Path) -> None:
    taps = capture(Stateful(), torch.randn(4, 2), object(), folder=tmp_path, replay=True)
    done = replays(taps)[":out0"]
    assert (done.equal, done.calls) == (False, 0)
    assert "object, which may hold state" in done.reason
    assert replays(taps)["/aten.mul.Tensor#0:out0"].equal


def test_random_operators_are_not_run_again(tmp_path: Path) -> None:
    taps = capture(torch.nn.Dropout(0.5).train(), torch.randn(4, 2), folder=tmp_path, replay=True)
    reasons = [replay.reason for replay in taps.manifest.replays if not replay.calls]
    assert any("random" in reason for reason in reasons)


def test_a_module_that_raises_leaves_nothing_behind(runs: Runs) -> None:
    class Broken(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("broken")

    model = torch.nn.Sequential(torch.nn.Identity(), Broken())
    with (
        pytest.raises(RuntimeError, match="broken"),
        Recorder(model, Fixed(3), CapturePlan(level="operator")) as recorder,
    ):
        model(torch.zeros(3, 2))
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert not recorder.sink.store.entries
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


LAUNCH = """
import sys
from pathlib import Path
import torch, triton, triton.language as tl
from triton.runtime.interpreter import InterpretedFunction
from samebits.tools.align.taps import Taps
from samebits.tools.capture.recorder import Recorder
from samebits.tools.capture.rows import PassRows
from samebits.tools.schema.sites import CapturePlan

@triton.jit
def add_scaled(x_ptr, y_ptr, out_ptr, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    y = tl.load(y_ptr + i, mask=i < n)
    tl.store(y_ptr + i, x + y, mask=i < n)
    tl.store(out_ptr + i, (x + y) * scale, mask=i < n)

class Kernel(torch.nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        add_scaled[(triton.cdiv(x.numel(), 16),)](x, y, out, x.numel(), 2.0, BLOCK=16)
        return out

class Map:
    def current(self):
        return PassRows(torch.zeros(6, dtype=torch.int32), torch.arange(6, dtype=torch.int32), None, None)

run = InterpretedFunction.run
x, y = torch.randn(6, 4), torch.randn(6, 4)
old = y.clone()
model = Kernel()
with torch.no_grad(), Recorder(model, Map(), CapturePlan(level="operator", store="tensors", replay=True)) as recorder:
    model(x, y)
recorder.write(Path(sys.argv[1]))
assert InterpretedFunction.run is run
taps = Taps.open(Path(sys.argv[1]))
name = "/triton.add_scaled#0"
found = [str(tap.site).removeprefix(name) for tap in taps.manifest.taps if str(tap.site).startswith(name)]
assert found == [":in.x_ptr", ":in.y_ptr", ":scalars", ":mut.y_ptr", ":mut.out_ptr"], found
assert torch.equal(taps.value(name + ":in.y_ptr"), old)
assert torch.equal(taps.value(name + ":mut.y_ptr"), old + x)
assert torch.equal(taps.value(name + ":mut.out_ptr"), (old + x) * 2)
done = {str(r.site): r for r in taps.manifest.replays}
assert done[name + ":out0"].equal and done[name + ":out0"].calls == 1
print("seen")
"""


def test_triton_launches_are_operators(tmp_path: Path) -> None:
    """In the interpreter; the wrapper around compiled launches is the same one."""
    script = tmp_path / "launch.py"  # Triton reads a kernel's source from its file
    script.write_text(LAUNCH, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "capture")],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "seen", done.stderr
