"""How the rows of a pass are cut into pieces, and up to how many keys nobody would need to.

Legend: see cpu_pieces.py.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.setup import cpu_pieces

TABLE = torch.tensor([[5, 6], [7, 8], [9, 9]], dtype=torch.int32)


def whole(rows: list[int], before: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    starts_S1 = torch.tensor([0, *torch.tensor(rows).cumsum(0).tolist()], dtype=torch.int32)
    return starts_S1, torch.tensor([a + b for a, b in zip(rows, before, strict=True)], dtype=torch.int32)


@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_every_row_keeps_its_keys_and_its_blocks(size: int) -> None:
    rows, before = [5, 1, 8], [0, 40, 7]
    starts_P1, lengths_P, table_PW = cpu_pieces.cut(*whole(rows, before), TABLE, size)
    found = []
    for (a, b), length, blocks in zip(pairwise(starts_P1.tolist()), lengths_P.tolist(), table_PW.tolist(), strict=True):
        assert 1 <= b - a <= size
        found += [(row, length - (b - 1 - row), blocks) for row in range(a, b)]
    owners = [(number, place) for number, count in enumerate(rows) for place in range(count)]
    assert found == [(row, before[s] + p + 1, TABLE[s].tolist()) for row, (s, p) in enumerate(owners)]
    assert {x.dtype for x in (starts_P1, lengths_P, table_PW)} == {torch.int32}


def test_a_request_without_rows_has_no_piece() -> None:
    starts_P1, lengths_P, table_PW = cpu_pieces.cut(*whole([2, 0, 1], [0, 3, 9]), TABLE, 4)
    assert starts_P1.tolist() == [0, 2, 3]
    assert lengths_P.tolist() == [2, 10]
    assert table_PW.tolist() == [[5, 6], [9, 9]]


@pytest.mark.parametrize(
    ("isa", "heads", "kv_heads", "rows"),
    [
        ("vec", 4, 2, 4),
        ("vec", 6, 2, 8),
        ("vec", 16, 1, 8),
        ("amx", 16, 2, 4),
        ("vec16", 4, 4, 16),
        ("unknown", 4, 2, 1),
    ],
)
def test_a_piece_is_one_step_of_the_kernels_loop(isa: str, heads: int, kv_heads: int, rows: int) -> None:
    assert cpu_pieces.most_rows(isa, heads, kv_heads) == rows


def test_the_setting_is_read_and_an_unknown_one_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, asked in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv(cpu_pieces.VARIABLE, value)
        assert cpu_pieces.asked() is asked
    monkeypatch.setenv(cpu_pieces.VARIABLE, "yes")
    with pytest.raises(PatchError, match="SAMEBITS_CPU_ATTN_PIECES=yes: neither 0 nor 1"):
        cpu_pieces.asked()


def test_more_of_a_cache_or_smaller_heads_hold_more_keys() -> None:
    keys = [cpu_pieces.keys_of_a_prefill("vec", 128, 2, cache << 10) for cache in (512, 1024, 2048)]
    assert keys == sorted(keys, key=lambda count: count or 0)
    assert cpu_pieces.keys_of_a_prefill("vec", 64, 2, 2 << 20) == 1792
    assert cpu_pieces.keys_of_a_prefill("vec", 64, 2, 0) is None
    assert cpu_pieces.keys_of_a_prefill("unknown", 64, 2, 2 << 20) is None
