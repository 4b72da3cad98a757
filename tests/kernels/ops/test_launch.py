"""Launches past Triton's own: never another kernel than it would take, and its own way for all that is unusual."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")

from triton._C.libtriton import native_specialize_impl  # noqa: E402
from triton.backends.compiler import BaseBackend  # noqa: E402

from samebits.kernels.ops import launch  # noqa: E402
from samebits.kernels.ops.attention import boxes  # noqa: E402

EDGES = (1 << 31, 1 << 32, 1 << 63, 1 << 64)
DTYPES = (torch.bfloat16, torch.float16)


def specialization(arg: Any, of_value: bool = True, align: bool = True) -> Any:
    """Triton's own word on an argument."""
    try:
        return native_specialize_impl(BaseBackend, arg, False, of_value, align)
    except TypeError:
        return "refused"


def some_number(draw: random.Random) -> Any:
    near = draw.choice((0, 0, 0, 16, 4096, *EDGES)) * draw.choice((1, 1, -1)) + draw.randrange(-17, 18)
    near = min(max(near, -(1 << 63)), (1 << 64) - 1)
    return draw.choice((near, near, near, near, 1, float(near), 1.0, True, False, None, np.int64(near % 64)))


def told_apart(kinds: Callable[..., Any]) -> int:
    """How many of many sets of numbers share a kind with a set that Triton specializes otherwise."""
    draw, wrong = random.Random(7), 0
    seen: dict[Any, Any] = {}
    for _ in range(20_000):
        numbers = [some_number(draw) for _ in range(2)]
        found = kinds(*numbers)
        if found == -1:
            continue
        theirs = [specialization(n, of, align) for n in numbers for of in (True, False) for align in (True, False)]
        wrong += seen.setdefault(found, theirs) != theirs
    assert len(seen) > 10
    return wrong


def test_numbers_of_one_kind_are_one_specialization_of_triton() -> None:
    assert told_apart(launch.kinds) == 0


@pytest.mark.parametrize("forgotten", range(3))
def test_a_kind_that_forgets_width_or_one_or_sixteen_is_seen(forgotten: int) -> None:
    def coarse(*numbers: object) -> Any:
        kinds = [launch.kind(n) for n in numbers]
        if None in kinds:
            return -1
        return tuple(k if k is float else (*k[:forgotten], *k[forgotten + 1 :]) for k in kinds)

    assert told_apart(coarse) > 0


class Compiled:
    """What Triton returns from a launch."""

    def __init__(self, specialized: Any, scratch: int = 0) -> None:
        self.specialized, self.metadata = specialized, SimpleNamespace(tensordesc_meta=None)
        self.function, self.packed_metadata = 99, (4, 1, 0)
        self.run = SimpleNamespace(
            global_scratch_size=scratch, profile_scratch_size=0, launch_cooperative_grid=False, launch_pdl=True
        )


class Kernel:
    """A JITFunction as far as a form asks: it finds its compiled kernels by Triton's own specialization."""

    def __init__(self, names: str, scratch: int = 0) -> None:
        self.__name__, self.pre_run_hooks, self.scratch = "fake_kernel", [], scratch
        self.arg_names = names.split()
        self.compiled: dict[Any, Compiled] = {}
        self.launched: list[Any] = []
        self.direct: list[Any] = []

    def __getitem__(self, grid: Any) -> Callable[..., Compiled]:
        def run(*args: Any, **constants: Any) -> Compiled:
            key = str([specialization(a) for a in args])
            found = self.compiled.setdefault(key, Compiled(key, self.scratch))
            self.launched.append((grid, args, constants))
            return found

        return run


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A device and a stream, where there is none."""
    state = SimpleNamespace(device=0, stream=7)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: state.device, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: state.stream, raising=False)
    monkeypatch.setattr(launch, "ENTER", launch.knobs.runtime.launch_enter_hook)
    monkeypatch.setattr(launch, "EXIT", launch.knobs.runtime.launch_exit_hook)
    return state


def form_of(kernel: Kernel, monkeypatch: pytest.MonkeyPatch, **constants: Any) -> launch.Form:
    """A form that may go past Triton, whatever Triton is installed; direct launches are noted by the kernel."""
    form = launch.Form(kernel, **constants)
    form.direct = True
    prepare = form.prepare

    def noted(compiled: Any, boxes: int, given: int) -> launch.Ready | None:
        compiled.run.launch = max  # a builtin
        ready = prepare(compiled, boxes, given)
        if ready is None:
            return None
        return replace(ready, launch=lambda *a: kernel.direct.append((compiled, a)))

    monkeypatch.setattr(form, "prepare", noted)
    return form


def test_the_second_launch_gives_the_launcher_every_argument_in_order_and_both_kinds_are_counted(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "ran", lambda kernel: counted.update([kernel]))
    counted: Counter[str] = Counter()
    kernel = Kernel("x_ptr y_ptr rows eps D num_warps")
    form = form_of(kernel, monkeypatch, D=64, num_warps=4, enable_fp_fusion=False)
    x, y = torch.zeros(8), torch.zeros(8)
    for rows in (100, 101):
        form((rows, 2, 1), (x, y), (rows, 1e-6))
    machine.stream = 8
    form((9, 2, 1), (x, y), (103, 1e-6))
    assert [grid[0] for grid, _, _ in kernel.launched] == [100]
    assert kernel.launched[0][2] == {"D": 64, "num_warps": 4, "enable_fp_fusion": False}
    assert counted == {"launched by Triton: fake_kernel": 1, "launched past Triton: fake_kernel": 2}
    pointers = x.data_ptr(), y.data_ptr()
    middle = (99, False, True, None, None, (4, 1, 0), None, None, None)
    assert [args for _, args in kernel.direct] == [
        (101, 2, 1, 7, *middle, *pointers, 101, 1e-6, 64, 4),
        (9, 2, 1, 8, *middle, *pointers, 103, 1e-6, 64, 4),
    ]


def test_a_direct_launch_always_takes_the_kernel_that_triton_would(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, kernel = random.Random(3), Kernel("x_ptr y_ptr z_ptr a b c")
    form, stores = form_of(kernel, monkeypatch), {dtype: torch.zeros(64, dtype=dtype) for dtype in DTYPES}
    for _ in range(6_000):
        tensors = tuple(
            draw.choice((None, *[stores[draw.choice(DTYPES)][draw.choice((0, 0, 0, 0, 1, 32)) :]] * 9))
            for _ in range(3)
        )
        numbers = tuple(some_number(draw) if draw.random() < 0.1 else draw.choice((1, 3, 16)) for _ in range(3))
        before = len(kernel.direct)
        form((1, 1, 1), tensors, numbers)
        if len(kernel.direct) > before:
            assert kernel.direct[-1][0].specialized == str([specialization(a) for a in (*tensors, *numbers)])
    assert len(kernel.direct) > 500
    assert len(kernel.launched) > 500


def test_what_is_unusual_is_launched_by_triton(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(8)

    def direct(form: launch.Form, kernel: Kernel, *call: Any) -> int:
        before = len(kernel.direct)
        for _ in range(2):
            form((1, 1, 1), *(call or ((x, x), (5,))))
        return len(kernel.direct) - before

    kernel = Kernel("x_ptr y_ptr rows")
    form = form_of(kernel, monkeypatch)
    assert direct(form, kernel) == 1
    assert direct(form, kernel) == 2
    for call in (((x[1:], x), (5,)), ((x, None), (5,)), ((x, x), (True,)), ((x, x), (None,))):
        assert direct(form, kernel, *call) == 0, call
    machine.device = 1
    assert direct(form, kernel) == 1  # another device has kernels of its own
    kernel.pre_run_hooks.append(print)
    assert direct(form, kernel) == 0
    kernel.pre_run_hooks.clear()
    for owner, name, value in (
        (launch.knobs.runtime, "debug", True),
        (launch.knobs.compilation, "instrumentation_mode", "fpsan"),
        (launch.knobs.runtime, "launch_enter_hook", print),
        (launch.knobs.runtime, "launch_exit_hook", print),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert direct(form, kernel) == 0, name
    launch.ENTER.calls.append(print)
    try:
        assert direct(form, kernel) == 0
    finally:
        launch.ENTER.calls.remove(print)
    assert direct(form, kernel) == 2
    greedy = Kernel("x_ptr y_ptr rows", scratch=128)
    assert direct(form_of(greedy, monkeypatch), greedy) == 0


def test_interpreted_kernels_and_other_tritons_are_launched_by_triton() -> None:
    form = launch.Form(Kernel("x_ptr"))
    assert not form.direct


def test_descriptors_of_one_kind_are_one_specialization_and_their_numbers_none() -> None:
    seen: dict[Any, set[str]] = {}
    for dtype in (torch.bfloat16, torch.float16):
        for tokens, heads, size in ((1, 1, 64), (5, 16, 64), (3, 16, 128), (64, 8, 128)):
            for rows in (64, 128):
                box = boxes.of_queries(torch.zeros(tokens, heads, size, dtype=dtype), rows)
                seen.setdefault(box.kind, set()).add(str(specialization(box.descriptor())))
    assert len(seen) == 8
    assert all(len(found) == 1 for found in seen.values())
    assert len(set().union(*seen.values())) == 8


@pytest.mark.gpu
def test_on_a_gpu_launches_past_triton_have_its_bits_at_any_alignment_on_other_streams_and_in_graphs() -> None:
    from samebits.kernels.ops.silu_mul.contract import contract
    from samebits.kernels.ops.silu_mul.triton import TILE as WHOLE
    from samebits.kernels.ops.silu_mul.triton import form_of, run

    store = torch.randn(300 * 2 * 640 + 8, device="cuda").bfloat16()

    def halves(offset: int = 0) -> tuple[torch.Tensor, ...]:
        return store[offset : offset + 300 * 2 * 640].view(300, 2 * 640).chunk(2, -1)

    def same(y: torch.Tensor, offset: int = 0) -> bool:
        torch.cuda.synchronize()
        return torch.equal(y.view(torch.int16), contract(*halves(offset)).view(torch.int16))

    for offset in (0, 0, 1, 8, 0):
        assert same(run(*halves(offset)), offset)
    assert form_of(WHOLE).direct == launch.KNOWN
    assert len(form_of(WHOLE).ready) == (1 if launch.KNOWN else 0)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert same(run(*halves()))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run(*halves())
    store.mul_(-1.5)
    y.zero_()
    graph.replay()
    assert same(y)
