"""What the programs of Hopper's prefill kernel are handed. Nothing here can run the kernel: dispatch is the real one up
to the launch, which is written down, and the kernel's arithmetic of tickets runs as plain Python.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from samebits.kernels.ops.attention import dispatch, gluon, gluon_items, gluon_parts
from samebits.kernels.ops.attention_varlen import dispatch as varlen

KERNEL = gluon.prefill_hopper_kernel
HEADS, KEY_HEADS, PAGE = 6, 2, 16
GROUP = HEADS // KEY_HEADS
LENGTHS = [[1], [127], [128], [129], [192], [384], [400, 0, 6, 1, 700], [128, 128], [0, 193, 64, 5, 192]]
Launch = tuple[tuple[int, ...], dict[str, Any]]


@dataclass(slots=True, frozen=True)
class Pointer:
    """Integers in memory, as the kernel reads them."""

    values: list[int]
    at: int = 0

    def __add__(self, count: int) -> Pointer:
        return Pointer(self.values, self.at + count)


class Launches:
    """Stands where the kernel is: writes down what it would have been launched with."""

    def __init__(self) -> None:
        self.seen: list[Launch] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*given: Any, **constants: Any) -> None:
            names = KERNEL.arg_names[: len(given)]
            assert set(KERNEL.arg_names) == {*names, *constants}
            self.seen.append((grid, dict(zip(names, given, strict=True)) | constants))

        return launch


LAUNCHES = Launches()


@pytest.fixture(autouse=True)
def _on_the_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    words = SimpleNamespace(
        load=lambda pointer: pointer.values[pointer.at],
        cdiv=lambda a, b: -(-a // b),
        where=lambda condition, a, b: a if condition else b,
        minimum=min,
    )
    for module in (gluon, gluon_items):
        monkeypatch.setattr(module, "gl", words)
    for name in ("ROWS", "TILE"):
        monkeypatch.setattr(gluon_items, name, getattr(gluon_items, name).value)
    monkeypatch.setattr(gluon_items, "find_sequence", gluon_items.find_sequence.fn)
    monkeypatch.setattr(gluon, "prefill_hopper_kernel", LAUNCHES)
    monkeypatch.setattr(dispatch, "l2_bytes_of", lambda _: 1 << 30)
    monkeypatch.setattr(dispatch, "fits_hopper", lambda *_: True)
    LAUNCHES.seen.clear()
    dispatch.prefill_hopper_of.cache_clear()
    yield
    dispatch.prefill_hopper_of.cache_clear()


def paged(lengths: list[int], prefix: int, size: int) -> Launch:
    """A launch for queries behind `prefix` keys each."""
    q = torch.zeros(sum(lengths), HEADS, size, dtype=torch.bfloat16)
    cache = torch.zeros(3, PAGE, KEY_HEADS, size, dtype=torch.bfloat16)
    starts, keys = torch.tensor([0, *lengths]).cumsum(0).int(), torch.tensor(lengths).int() + prefix
    table = torch.zeros(len(lengths), -(-(max(lengths) + prefix) // PAGE), dtype=torch.int32)
    longest = max(lengths) + prefix
    dispatch.prefill_hopper(q, cache, cache, table, starts, keys, longest, 0.1, torch.empty_like(q))
    return LAUNCHES.seen[-1]


def rows_taken(launch: Launch) -> Counter[tuple[int, int]]:
    """(head, token) -> how many items compute it, over all tickets of a launch."""
    _, given = launch
    size, starts, keys = given["D"], given["cu_ptr"].tolist(), given["len_ptr"].tolist()
    sizes = [given[name] for name in ("B", "heads", "blocks", "GROUP", "LEAVE")]
    found: Counter[tuple[int, int]] = Counter()
    for ticket in range(given["items"]):
        item = gluon_items.locate.fn(ticket, Pointer(starts), Pointer(keys), *sizes, size)
        b, head, first, local, length, key_length, tiles = item
        if tiles == 0:
            continue
        rows = gluon_parts.parts(size) * gluon_items.ROWS
        last = min(local + rows, length)
        assert (first, length, key_length) == (starts[b], starts[b + 1] - starts[b], keys[b])
        assert tiles == -(-min(key_length, key_length - length + local + rows) // 128)
        found.update((head, first + row) for row in range(local, last))
    return found


def due(lengths: list[int], leave: int) -> Counter[tuple[int, int]]:
    """Every row of every sequence that decode does not have, once."""
    starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
    return Counter(
        (head, start + row)
        for start, length in zip(starts, lengths, strict=False)
        if length * GROUP > leave
        for row in range(length)
        for head in range(HEADS)
    )


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("prefix", [0, 300])
@pytest.mark.parametrize("sections", [1, 2])
def test_tickets_cover_every_row_of_every_head_once(
    monkeypatch: pytest.MonkeyPatch, size: int, prefix: int, sections: int
) -> None:
    monkeypatch.setattr(dispatch, "sections_for", lambda *_: sections)
    for lengths in LENGTHS:
        grid, given = paged(lengths, prefix, size)
        assert math.prod(grid) == min(given["items"], dispatch.processors_of(torch.device("cpu")))
        assert given["heads"] * sections == HEADS
        assert rows_taken((grid, given)) == due(lengths, given["LEAVE"]), lengths


def test_one_block_too_few_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks_for = dispatch.blocks_for
    monkeypatch.setattr(dispatch, "blocks_for", lambda *sizes: blocks_for(*sizes) - 1)
    assert rows_taken(paged([128, 128, 129], 0, 128)) != due([128, 128, 129], 16)


def test_one_sequence_has_no_block_without_queries() -> None:
    for tokens in (128, 256, 300):
        _, given = paged([tokens], 0, 128)
        assert given["blocks"] == -(-tokens // 128)


def test_varlen_leaves_no_sequence_to_decode() -> None:
    lengths = [5, 1, 300, 64]
    q = torch.zeros(sum(lengths), HEADS, 64, dtype=torch.bfloat16)
    k = torch.zeros(sum(lengths), KEY_HEADS, 64, dtype=torch.bfloat16)
    varlen.run(q, k, k, torch.tensor([0, *lengths]).cumsum(0).int(), max(lengths), 0.1)
    launch = LAUNCHES.seen[-1]
    assert launch[1]["PAGE"] == 0
    assert rows_taken(launch) == due(lengths, 0)


def test_every_launch_has_a_ticket_counter_of_its_own_that_is_zero() -> None:
    counters = [paged([200], 0, size)[1]["ticket_ptr"] for size in (64, 128, 128)]
    assert len({counter.data_ptr() for counter in counters}) == len(counters)
    assert all((counter.dtype, counter.tolist()) == (torch.int32, [0]) for counter in counters)


def test_no_number_makes_another_compiled_form() -> None:
    """So that one prefill while the engine comes up compiles what every batch needs."""
    numbers = [
        param for param in KERNEL.params if not param.is_constexpr and not param.name.endswith(("_desc", "_ptr"))
    ]
    assert [param.name for param in numbers if not param.do_not_specialize] == ["c"], "a float, which has one form"
    assert len(numbers) > 10
