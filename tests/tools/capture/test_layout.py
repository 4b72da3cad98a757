"""Where the token axis is."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from samebits.tools.capture.layout import Grid, find
from samebits.tools.capture.passes import Pass
from samebits.tools.capture.rows import PassRows

FLAT = Grid(6, None, 2)
BATCH = Grid(6, (2, 3), None)


def numbered(shape: tuple[int, ...], *axes: int) -> torch.Tensor:
    """A tensor whose values are token index * 1000 + place among the other axes; token index over `axes`."""
    token = torch.arange(torch.Size([shape[a] for a in axes]).numel()).view([shape[a] for a in axes])
    others = [a for a in range(len(shape)) if a not in axes]
    place = torch.arange(torch.Size([shape[a] for a in others]).numel()).view([shape[a] for a in others])
    full = token.view(*token.shape, *[1] * len(others)) * 1000 + place.view(*[1] * len(axes), *place.shape)
    order = [*axes, *others]
    return full.permute([order.index(a) for a in range(len(shape))])


@pytest.mark.parametrize(
    ("grid", "shape", "axes"),
    [
        (FLAT, (6,), (0,)),
        (FLAT, (6, 4), (0,)),
        (FLAT, (6, 6), (0,)),
        (FLAT, (6, 4, 6), (0,)),
        (FLAT, (1, 6, 4), (1,)),
        (FLAT, (4, 6, 5), (1,)),
        (FLAT, (4, 6, 6), (1,)),
        (FLAT, (4, 6), (1,)),
        (BATCH, (2, 3), (0, 1)),
        (BATCH, (2, 3, 4), (0, 1)),
        (BATCH, (2, 3, 3), (0, 1)),
        (BATCH, (2, 4, 3, 5), (0, 2)),
        (BATCH, (2, 4, 3, 3), (0, 2)),
        (BATCH, (2, 4, 3), (0, 2)),
        (BATCH, (3, 2, 4), (1, 0)),
        (BATCH, (6, 4), (0,)),
        (BATCH, (1, 6, 4), (1,)),
        (Grid(5, (1, 5), None), (1, 4, 5, 8), (2,)),
        (Grid(5, (1, 5), None), (5, 4), (0,)),
    ],
)
def test_rows_are_tokens_and_columns_are_the_other_axes_in_order(
    grid: Grid, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    layout = find(shape, grid)
    assert layout is not None
    assert layout.sure
    tensor = numbered(shape, *axes)
    rows = layout.rows(tensor)
    columns = tensor.numel() // grid.tokens
    assert rows.tolist() == [[token * 1000 + place for place in range(columns)] for token in range(grid.tokens)]


def test_heads_folded_into_the_batch_give_the_same_rows() -> None:
    tensor = numbered((2, 4, 3, 5), 0, 2)
    layout = find((8, 3, 5), BATCH)
    assert layout is not None
    plain = find((2, 4, 3, 5), BATCH)
    assert plain is not None
    assert torch.equal(layout.rows(tensor.reshape(8, 3, 5)), plain.rows(tensor))


def test_what_all_sequences_of_a_batch_share_is_repeated() -> None:
    layout = find((1, 3, 4), BATCH)
    assert layout is not None
    assert layout.rows(torch.arange(12).view(1, 3, 4)).tolist() == torch.arange(12).view(3, 4).tolist() * 2


@pytest.mark.parametrize("shape", [(), (4,), (4, 5), (7, 3, 3), (4, 6, 6, 6)])
def test_without_one_token_axis_there_are_no_rows(shape: tuple[int, ...]) -> None:
    assert find(shape, Grid(6, None, None)) is None


@pytest.mark.parametrize("shape", [(2, 9), (1, 2, 9), (2, 1, 9)])
def test_head_rows_are_found_by_their_number(shape: tuple[int, ...]) -> None:
    layout = find(shape, FLAT)
    assert layout is not None
    assert layout.head
    assert layout.rows(torch.arange(18).view(shape)).tolist() == torch.arange(18).view(2, 9).tolist()


def test_as_many_heads_as_tokens_is_decided_by_another_pass() -> None:
    """[heads, tokens, size] with 6 heads: six tokens alone cannot tell, a pass of five can."""
    alone = find((6, 6, 8), FLAT)
    assert alone is not None
    assert not alone.sure
    other = find((6, 5, 8), Grid(5, None, None))
    assert other is not None
    assert other.sure
    told = find((6, 6, 8), FLAT, other)
    assert told is not None
    assert told.axes == (1, 0, 2)


def test_one_token_alone_is_never_sure() -> None:
    layout = find((4, 1, 8), Grid(1, None, 1))
    assert layout is not None
    assert not layout.sure


@pytest.mark.parametrize("tokens", [1, 6])
@pytest.mark.parametrize("batch", [None, (2, 3)])
def test_what_a_pass_keeps_of_its_layouts_changes_none(tokens: int, batch: tuple[int, int] | None) -> None:
    whole = torch.arange(tokens, dtype=torch.int32)
    head = None if batch else whole[-1:].long()
    running = Pass.begin(0, PassRows(torch.zeros_like(whole), whole, batch if tokens == 6 else None, head), None)
    shapes = [shape for rank in (1, 2, 3) for shape in product((1, 2, 3, 4, 6), repeat=rank)]
    likes = [None, *(find(shape, Grid(4, None, 2)) for shape in shapes)]
    for shape, like in product(shapes, likes):
        assert running.layout(shape, like) == find(shape, running.grid, like)
