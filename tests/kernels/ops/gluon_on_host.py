"""A Gluon kernel for Hopper, run as Python where there is no GPU: its programs and warpgroups are threads in a random
schedule, tensors are expressions of what they were computed from, shared memory and barriers are modelled.

An error is: a deadlock, a slot loaded into or changed while a product reads it, a product that reads what is not there
or is used before it was waited for. What a warpgroup does to its own memory is taken to be in order.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.kernels.ops import gluon_world as world
from tests.kernels.ops.gluon_values import WARP, Expr, Lanes, Token, Whole, layout, made
from tests.kernels.ops.gluon_world import Thread, World, require

PANEL = 64


class Slot:
    """A tile in shared memory. boxes: what was loaded where; cleared: its valid rows, where the others were cleared."""

    def __init__(self, name: str, boxes: int, dtype: str, shape: list[int]) -> None:
        self.name, self.needed, self.dtype, self.shape = name, boxes, dtype, shape
        self.boxes: dict[int, tuple[Any, ...]] = {}
        self.cleared: int | None = None
        self.readers = 0

    def content(self) -> tuple[Any, ...]:
        return "memory", tuple(sorted(self.boxes.items())), self.cleared

    def permute(self, _: Any) -> Slot:
        return self

    def load(self, _: Any) -> Expr:
        require(len(self.boxes) == self.needed, f"{self.name} is read before it is there")
        return Expr(*self.content())


class Slots:
    def __init__(self, name: str, dtype: str, shape: list[int]) -> None:
        boxes = 1 if name == "q" else (shape[1] // world.W.box) * (world.W.size // PANEL)
        self.all, self.dtype, self.shape = [Slot(name, boxes, dtype, shape[1:]) for _ in range(shape[0])], dtype, shape

    def index(self, number: int) -> Slot:
        return self.all[number]

    def _reinterpret(self, _: Any, shape: list[int], __: Any) -> SimpleNamespace:
        each = shape[0] // len(self.all)
        return SimpleNamespace(index=lambda number: (self.all[number // each], number % each))


class Cell:
    """Shared memory that one writes and others read; None: nothing that may be read."""

    def __init__(self) -> None:
        self.value: Any = None

    def store(self, value: Any) -> None:
        world.W.pause()
        self.value = value

    def load(self, _: Any) -> Any:
        world.W.pause()
        require(self.value is not None, "memory is read before it is written")
        return self.value


class Cells:
    def __init__(self, count: int) -> None:
        self.all = [Cell() for _ in range(count)]

    def index(self, number: int) -> Cell:
        return self.all[number]


class Bar:
    """An mbarrier, or several."""

    def __init__(self, name: str, count: int = 1) -> None:
        self.name, self.all = name, [self] if count == 1 else [Bar(name) for _ in range(count)]
        self.count = self.left = self.bytes = self.phase = 0

    def index(self, number: int) -> Bar:
        return self.all[number]

    def came(self, count: int) -> None:
        require(self.left >= count, f"too many arrivals at {self.name}")
        self.left -= count
        self.turn()

    def turn(self) -> None:
        if self.left == 0 and self.bytes == 0:
            self.phase, self.left = self.phase + 1, self.count


class MBarrier:
    """The module of the same name."""

    MBarrierLayout = staticmethod(layout)

    @staticmethod
    def init(bar: Bar, count: int) -> None:
        bar.count = bar.left = count

    @staticmethod
    def wait(bar: Bar, phase: int, pred: bool = True) -> None:
        phase ^= world.W.planted == f"parity {world.W.now.name} {bar.name}"
        pred = pred and world.W.planted != f"wait {world.W.now.name} {bar.name}"
        world.W.pause((lambda: bar.phase & 1 != phase) if pred else None)

    @staticmethod
    def arrive(bar: Bar, count: int) -> None:
        world.W.pause()
        if world.W.planted != f"arrive {world.W.now.name} {bar.name}":
            bar.came(count)

    @staticmethod
    def expect(bar: Bar, size: int) -> None:
        world.W.pause()
        bar.bytes += size
        bar.came(1)


def copy(desc: Any, at: list[int], bar: Bar, box: Any) -> None:
    """TMA: a box lands at any time from now on."""
    slot, number = box if isinstance(box, tuple) else (box, 0)
    world.W.pause()
    require(slot.readers == 0, f"{slot.name} is loaded into while a product reads it")
    slot.boxes.pop(number, None)
    slot.cleared = None

    def land() -> None:
        slot.boxes[number] = (slot.name, *at)
        bar.bytes -= desc.block_shape[0] * desc.block_shape[1] * 2
        bar.turn()

    world.W.landing.append(land)


def product(a: Any, b: Any, acc: Any, use_acc: bool, is_async: bool) -> Token:
    world.W.pause()
    operands = [x.load(None) if isinstance(x, Slot) else x for x in (a, b)]
    value = made("product", *operands, acc) if use_acc else made("product", *operands)
    world.W.now.products.append(Token(value, [x for x in (a, b) if isinstance(x, Slot)]))
    return world.W.now.products[-1]


def product_wait(left: int, deps: list[Token]) -> Expr:
    world.W.pause()
    while len(world.W.now.products) > left:
        token = world.W.now.products.pop(0)
        token.done = True
        for slot, content in token.reads:
            slot.readers -= 1
            require(slot.content() == content, f"{slot.name} changes while a product reads it")
    require(deps[0].done, "waits for too little")
    return deps[0].value


def assembly(code: str, _: str, operands: list[Any], **__: Any) -> Any:
    """PTX of the kernel: a value where it is, named barriers of two warpgroups, instructions."""
    if code == "mov.b32 $0, $1;":
        return operands[0]
    if "%laneid" in code:
        return Lanes(range(WARP))
    if code.startswith("shfl.sync.idx.b32 $0, $1, $2, 31,"):
        return operands[0][operands[1] ^ (world.W.planted == f"lane {world.W.now.name}")]
    if not code.startswith("bar."):
        return made("ptx", code, *operands)
    word, number = code.removeprefix("bar.").split(",")[0].split(" ")
    barrier = world.W.named.setdefault((world.W.now.program, number), SimpleNamespace(arrived=0, turns=0))
    world.W.pause()
    if world.W.planted == f"turn {word} {world.W.now.name}":
        return None
    barrier.arrived += 1
    turns = barrier.turns
    if barrier.arrived == 2:
        barrier.arrived, barrier.turns = 0, turns + 1
    if word == "sync":
        world.W.pause(lambda: barrier.turns > turns)
    return None


class Language:
    """gl: numbers are computed, tensors are written down."""

    int32, int64, float32, float16, bfloat16 = "int32", "int64", "float32", "float16", "bfloat16"
    static_range = range
    DotOperandLayout = staticmethod(lambda _, parent, __: SimpleNamespace(parent=parent))
    inline_asm_elementwise = staticmethod(assembly)

    def __init__(self, bars: list[str]) -> None:
        self.bars = bars

    def __getattr__(self, name: str) -> Any:
        return layout if name.endswith("Layout") else lambda *given, **_: made(name, *given)

    def program_id(self, _: int) -> int:
        return world.W.now.program

    def num_programs(self, _: int) -> int:
        return world.W.programs

    def load(self, pointer: Any) -> Any:
        at, values = pointer.at, pointer.values
        return Lanes.each(lambda i: int(values[i]), at) if isinstance(at, Lanes) else int(values[at])

    def atomic_add(self, _: Any, count: int, sem: str) -> int:
        world.W.pause()
        world.W.tickets += count
        return world.W.tickets - count

    def thread_barrier(self) -> None:
        return None

    def cdiv(self, a: int, b: int) -> int:
        return -(-a // b)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return made("where", condition, a, b) if isinstance(condition, Expr) else (a if condition else b)

    def minimum(self, a: Any, b: Any) -> Any:
        if isinstance(a, Lanes):
            return Lanes.each(min, a, b)
        return min(a, b) if isinstance(a, int) else made("minimum", a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        return max(a, b) if isinstance(a, int) else made("maximum", a, b)

    def max(self, value: Any, _: int) -> Any:
        return Whole(value) if isinstance(value, int) else made("row maximum", value)

    def arange(self, first: int, _: int, layout: Any = None) -> int:
        return first  # the position of the first row stands for all of them

    def zeros(self, shape: list[int], *_: Any) -> Any:
        return 0 if shape == [1] else made("zeros", len(shape))

    def full(self, shape: list[int], value: float, *_: Any) -> Expr:
        return made("full", len(shape), value)

    def convert_layout(self, value: Any, _: Any) -> Any:
        return value

    def allocate_shared_memory(self, dtype: str, shape: list[int], _: Any) -> Any:
        names = world.W.now.allocated
        if dtype == "int64":
            names.append(self.bars[len([name for name in names if name in self.bars])])
            return Bar(names[-1], shape[0])
        if dtype in ("int32", "float32"):
            return Cells(shape[0]) if dtype == "int32" else Cell()
        names.append("qkv"[len([name for name in names if name not in self.bars])])
        return Slots(names[-1], dtype, shape)

    def warp_specialize(self, parts: list[Any], warps: list[int], registers: list[int]) -> None:
        assert len(parts) - 1 == len(warps) == len(registers)
        for number, (function, arguments) in enumerate(parts):
            alone = number > 0 and warps[number - 1] == 1
            world.W.spawn(function.__name__ if alone else f"consumer{number}", function, arguments)


def launch(batch: World, kernel: Any, given: dict[str, Any]) -> str:
    """Run a kernel that was taken apart by `stand_in`; the first fault."""
    world.W = batch
    for program in range(batch.programs):
        batch.now = Thread("launch", program)
        kernel(**given)
    return batch.run()
