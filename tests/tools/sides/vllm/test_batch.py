"""Rows of a pass by sequence and position, and the cross-checks that guard them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from samebits.tools.sides.vllm.batch import Batch, EngineRows, request_id, sequence_of

SEQUENCES = [[10, 11, 12, 13, 14, 15], [20, 21, 22, 23]]
PROMPTS = [4, 2]


@dataclass
class Metadata:
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor


def batch(parts: list[tuple[int, int, int]], padding: int = 0) -> Batch:
    """parts: (sequence, start, length)."""
    ids = [SEQUENCES[s][p] if s >= 0 else 1 for s, start, length in parts for p in range(start, start + length)]
    positions = [p for _, start, length in parts for p in range(start, start + length)]
    return Batch(
        [f"{request_id(s)}-0a1b2c3d" for s, _, _ in parts],
        [start for _, start, _ in parts],
        [length for _, _, length in parts],
        len(ids) + padding,
        torch.tensor(ids + [0] * padding),
        torch.tensor(positions + [0] * padding),
    )


def metadata(parts: list[tuple[int, int, int]]) -> Metadata:
    edges = torch.tensor([0, *[length for _, _, length in parts]]).cumsum(0)
    return Metadata(edges, torch.tensor([start + length for _, start, length in parts]))


def test_request_names_give_the_sequence_back() -> None:
    assert sequence_of(request_id(17, 3) + "-ae06b77a") == 17
    assert sequence_of(request_id(17, 3)) == 17
    assert sequence_of("0-ae06b77a") == sequence_of("samebits.5") == -1


def test_rows_of_a_mixed_pass_with_padding() -> None:
    rows, parts = EngineRows(SEQUENCES, PROMPTS), [(1, 2, 1), (0, 1, 3)]
    rows.enter(batch(parts, padding=2), metadata(parts))
    now = rows.current()
    assert now.sequence_T.tolist() == [1, 0, 0, 0, -1, -1]
    assert now.position_T.tolist()[:4] == [2, 1, 2, 3]
    assert now.head_R is not None
    assert now.head_R.tolist() == [0, 3]
    assert (rows.facts.mixed_passes, rows.facts.largest_pass) == (1, 4)


def test_forced_ids_are_those_behind_the_last_row_of_each_request() -> None:
    rows = EngineRows(SEQUENCES, PROMPTS)
    rows.enter(batch([(0, 0, 4), (1, 0, 1)]), None)
    assert rows.forced(torch.tensor([1, 2])).tolist() == [14, 2], (
        "a prompt that is not finished keeps the drawn id, which is thrown away"
    )
    assert rows.judged() == [0]
    rows.enter(batch([(0, 4, 1), (1, 1, 1)]), None)
    assert rows.forced(torch.tensor([15, 2])).tolist() == [15, 22]
    assert (rows.facts.forced, rows.facts.overruled, rows.facts.chunked_prefills) == (3, 2, 1)


def test_only_the_requests_that_are_kept_have_rows() -> None:
    rows = EngineRows(SEQUENCES, PROMPTS, kept=frozenset({request_id(0, 1)}))
    others = [f"{request_id(0, 0)}-ae06b77a", f"{request_id(0, 1)}-ae06b77b"]
    given = batch([(0, 0, 4), (0, 0, 5)])
    rows.enter(replace(given, requests=others), None)
    assert rows.current().sequence_T.tolist() == [-1] * 4 + [0] * 5
    assert rows.judged() == [1]
    assert rows.forced(torch.tensor([1, 2])).tolist() == [14, 15], "what is not kept is forced all the same"


def test_rows_computed_again_are_counted() -> None:
    rows = EngineRows(SEQUENCES, PROMPTS)
    rows.enter(batch([(0, 0, 4)]), None)
    rows.enter(batch([(0, 0, 5)]), None)
    assert rows.facts.recomputed_rows == 4
    assert rows.facts.chunked_prefills == 0


def test_other_token_ids_positions_or_metadata_are_noticed() -> None:
    parts = [(0, 0, 3), (1, 0, 2)]
    good = batch(parts)
    for planted, match in (
        (
            Batch(
                good.requests[::-1], good.starts, good.lengths[::-1], good.padded, good.input_ids_T, good.positions_T
            ),
            "positions given",
        ),
        (
            Batch(good.requests, good.starts, good.lengths, good.padded, good.input_ids_T.flip(0), good.positions_T),
            "the engine feeds",
        ),
        (
            Batch(good.requests, [1, 0], good.lengths, good.padded, good.input_ids_T, good.positions_T),
            "positions given",
        ),
    ):
        with pytest.raises(AssertionError, match=match):
            EngineRows(SEQUENCES, PROMPTS).enter(planted, metadata(parts))
    with pytest.raises(AssertionError, match="row borders"):
        EngineRows(SEQUENCES, PROMPTS).enter(good, metadata([(0, 0, 2), (1, 0, 3)]))
    with pytest.raises(AssertionError, match="sequence lengths"):
        EngineRows(SEQUENCES, PROMPTS).enter(good, metadata([(0, 1, 3), (1, 0, 2)]))
