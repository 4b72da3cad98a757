"""Hopper's prefill kernel itself, run as Python in random schedules: none stops it or lets a product read what is not
there, and every block of rows is computed by the operations of the contract in its order, whatever its company.

What one warpgroup does alone (masks, the tail of the values, the store) is taken from here, not from the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import getsource
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from tests.kernels.ops import gluon_on_host as host
from tests.kernels.ops import gluon_world

from samebits.kernels.ops.attention import dispatch, gluon, gluon_items, gluon_loads, gluon_parts, gluon_rows

TILE, SEGMENT_TILES, TABLE = 128, 4, 32
BARS = [word for word in getsource(gluon.prefill_hopper_kernel.fn).split() if word.endswith(("_full", "free"))]


@dataclass(slots=True, frozen=True)
class Pointer:
    values: list[int]
    at: Any = 0

    def __add__(self, count: Any) -> Pointer:
        return Pointer(self.values, self.at + count)


@pytest.fixture(autouse=True)
def _on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules of the kernel, their functions as Python has them."""
    language = host.Language(list(dict.fromkeys(BARS)))
    modules = (gluon_parts, gluon_rows, gluon_loads, gluon_items, gluon)
    for module in modules:
        for name, value in list(vars(module).items()):
            for plain in ("fn", "value"):
                if type(value).__module__.startswith("triton.") and hasattr(value, plain):
                    monkeypatch.setattr(module, name, getattr(value, plain))
    search = gluon_items.find_sequence
    hopper = {
        "gl": language,
        "mbarrier": host.MBarrier,
        "tma": SimpleNamespace(async_copy_global_to_shared=host.copy),
        "warpgroup_mma": host.product,
        "warpgroup_mma_wait": host.product_wait,
        "fence_async_shared": lambda: None,
        "find_sequence": lambda *given: host.Whole(search(*given)),
        "seen": seen,
        "clear_tail": clear_tail,
        "store_rows": store_rows,
    }
    for module in modules:
        for name in hopper.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, hopper[name])


def seen(scores: Any, position: int, tile: int) -> Any:
    """A mask that hides nothing changes nothing. position: of the first row."""
    return host.made("seen", scores) if (tile + 1) * TILE - 1 > position else scores


def clear_tail(slot: host.Slot, valid: int) -> None:
    gluon_world.W.pause()
    gluon_world.require(slot.cleared in (None, valid), "another tail was cleared")
    gluon_world.require(slot.cleared == valid or slot.readers == 0, "values are cleared while a product reads them")
    slot.cleared = valid


def store_rows(out: Any, total: host.Cell, _: Any, start: int, first: int, length: int, head: int, heads: int) -> None:
    gluon_world.W.pause()
    total.value = None
    gluon_world.require((head, start, first) not in gluon_world.W.stored, "rows are stored twice")
    gluon_world.W.stored[head, start, first] = out


class Batch:
    """A launch drawn at random: what the kernel is given and what it is to compute."""

    def __init__(self, seed: int, size: int, planted: str) -> None:
        random = Random(seed)
        self.size, self.parts = size, gluon_parts.parts(size)
        self.rows = self.parts * gluon_parts.ROWS
        batch, self.page = random.choice((1, 1, 2, 3)), random.choice((0, 16, 64, 256))
        self.box = min(self.page or TILE, TILE)
        drawn = [random.choice((0, 1, 5, 64, 128, 129, 190, random.randint(1, 400))) for _ in range(batch)]
        self.lengths = drawn if any(drawn) else [77, *drawn[1:]]
        cached = (0, 0, 1, 127, 640, random.randint(1, 1600)) if self.page else (0,)
        self.keys = [length and length + random.choice(cached) for length in self.lengths]
        self.starts = [sum(self.lengths[:i]) for i in range(batch + 1)]
        self.group, self.leave = random.choice((1, 2)), random.choice((0, 16))
        self.heads, self.head = 2 * self.group, size * random.choice((1, 2))
        self.table = [random.randint(0, 99) for _ in range(batch * TABLE * 4)]
        self.ratio = self.page + random.choice((0, 16))
        self.blocks = dispatch.blocks_for(self.starts[-1], batch, self.rows) - (planted == "blocks")
        self.sections, self.items = random.choice((1, 2)), self.heads * self.blocks
        self.world = gluon_world.World(random, size, self.box, min(self.items, random.choice((1, 1, 2, 3))), planted)

    def given(self, planted: str) -> dict[str, Any]:
        numbers = (len(self.lengths), TABLE * 4, self.ratio + (planted == "pages"), self.ratio, self.head, self.head)
        work = (self.heads, self.group, self.leave, self.heads // self.sections, self.blocks, self.items)
        segment = SEGMENT_TILES - (planted == "segments")
        starts, keys = Pointer(self.starts), Pointer(self.keys)
        boxes = [
            SimpleNamespace(dtype="bfloat16", layout=None, block_shape=shape)
            for shape in ([gluon_parts.ROWS, self.size], [self.box, host.PANEL], [self.box, host.PANEL])
        ]
        tensors = (*boxes, None, Pointer(self.table), starts, starts, keys, None)
        names = gluon.prefill_hopper_kernel.__code__.co_varnames
        return dict(zip(names, (*tensors, 0.5, *numbers, *work, self.size, self.page, segment, 4), strict=False))

    def tile(self, name: str, b: int, head: int, j: int, cleared: int | None = None) -> host.Expr:
        """What tile j of keys or values is in shared memory."""
        found = {}
        for i in range(TILE // self.box):
            n = j * TILE + i * self.box
            row = self.starts[b] + n
            if self.page:
                page = self.table[b * TABLE * 4 + min(n, self.keys[b] - 1) // self.page]
                row = page * self.ratio + n % self.page
            for panel in range(self.size // host.PANEL):
                at = head // self.group * self.head + panel * host.PANEL
                found[panel * (TILE // self.box) + i] = (name, row, at)
        return host.Expr("memory", tuple(sorted(found.items())), cleared)

    def wanted(self) -> dict[tuple[int, int, int], int]:
        """Block of rows -> its expression."""
        found = {}
        for b, (start, length, keys) in enumerate(zip(self.starts, self.lengths, self.keys, strict=False)):
            for first in range(0, -(-length // self.rows) * self.rows, gluon_parts.ROWS):
                before = keys - length
                tiles = -(-min(keys, before + first // self.rows * self.rows + self.rows) // TILE)
                if self.parts == 3:
                    tiles = min(tiles, -(-(before + first + gluon_parts.ROWS) // TILE))
                for head in range(self.heads) if length * self.group > self.leave else ():
                    found[head, start, first] = self.block(b, head, first, tiles).id
        return found

    def block(self, b: int, head: int, first: int, tiles: int) -> host.Expr:
        """Rows from `first` on, one tile after the other."""
        gl, position = gluon_parts.gl, self.keys[b] - self.lengths[b] + first
        q = host.Expr("memory", ((0, ("q", self.starts[b] + first, head * self.size)),), None)
        total_m, total_l, total = gl.full([1], float("-inf")), gl.zeros([0]), gl.zeros([0, 0])
        m = norm = acc = None
        for j in range(tiles):
            tail = self.keys[b] - j * TILE
            k = self.tile("k", b, head, j)
            v = self.tile("v", b, head, j, tail if j == tiles - 1 and tail < TILE else None)
            fresh = j % SEGMENT_TILES == 0
            if fresh and j:
                total_m, total_l, total = folded(m, norm, acc, total_m, total_l, total)
            scores = seen(host.made("product", q, k), position, j)
            base = (float("-inf"), 0.0) if fresh else (m, norm)
            wide, m, norm, alpha = gluon_parts.softmax_tile(scores, gl.max(scores, 1), 0.5, *base)
            p = gluon_parts.rounded(wide, "bfloat16", SimpleNamespace(parent=host.layout()))
            acc = host.made("product", p, v, *(() if fresh else (acc * gl.expand_dims(alpha, 1),)))
        _, total_l, total = folded(m, norm, acc, total_m, total_l, total)
        return total / gl.expand_dims(total_l, 1)


def folded(m: Any, norm: Any, acc: Any, total_m: Any, total_l: Any, total: Any) -> Any:
    memory = SimpleNamespace(load=lambda _: total)
    return gluon_parts.fold(m, norm, acc, total_m, total_l, memory, host.layout())


def fault(seed: int, size: int, planted: str = "") -> str:
    """What is wrong with one launch in one schedule."""
    batch = Batch(seed, size, planted)
    if found := host.launch(batch.world, gluon.prefill_hopper_kernel, batch.given(planted)):
        return found
    stored, wanted = batch.world.stored, batch.wanted()
    if stored.keys() != wanted.keys() or batch.world.tickets != batch.items:
        return "other rows, or not every ticket was taken"
    return "other operations" if any(stored[key].id != wanted[key] for key in wanted) else ""


@pytest.mark.parametrize("size", [64, 128])
def test_no_schedule_stops_the_kernel_or_changes_an_operation(size: int) -> None:
    assert [found for seed in range(60) if (found := fault(seed, size))] == []


PLANTED = {
    "parity keys_producer q_free": "deadlock",
    "wait keys_producer q_free": "",
    "wait keys_producer free": "",
    "parity values_producer q_full": "",
    "wait values_producer q_full": "",
    "wait values_producer free": "",
    "parity values_producer free": "",
    "arrive values_producer q_free": "deadlock",
    "lane keys_producer": "other operations",
    "lane values_producer": "other operations",
    "parity producer q_free": "deadlock",
    "wait producer q_free": "",
    "wait producer free": "",
    "parity producer free": "",
    "wait consumer2 q_full": "",
    "arrive consumer2 q_free": "deadlock",
    "wait consumer0 k_full": "is read before it is there",
    "wait consumer1 v_full": "is read before it is there",
    "arrive consumer0 q_free": "deadlock",
    "arrive consumer1 free": "deadlock",
    "turn arrive consumer1": "deadlock",
    "turn sync consumer0": "left",
    "segments": "other operations",
    "pages": "other operations",
    "blocks": "other rows",
}
"""What is left out or given wrongly -> the fault that says so, in some schedule. Empty: several do. The one producer
and the third consumer are those of head 64."""


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_left_out_is_seen(planted: str) -> None:
    size = 64 if {"producer", "consumer2"} & set(planted.split()) else 128
    faults = (fault(seed, size, planted) for seed in range(60))
    assert any(PLANTED[planted] in found for found in faults if found)


@pytest.mark.parametrize("name", ["k", "v"])
def test_page_numbers_of_the_tile_before_are_seen(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pages_of = gluon_items.pages_of
    late = "keys_producer" if name == "k" else "values_producer"

    def pages(table: Any, j: int, *sizes: int) -> Any:
        return pages_of(table, max(j - (gluon_world.W.now.name == late), 0), *sizes)

    monkeypatch.setattr(gluon_items, "pages_of", pages)
    assert any("other operations" in fault(seed, 128) for seed in range(60))
