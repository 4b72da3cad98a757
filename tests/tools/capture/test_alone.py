"""What a module shows when it is run alone: each fault is planted, and a module without it shows nothing.

Legend: B rows, L length, H hidden.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn import functional

from samebits.tools.capture.recorder import Recorder
from samebits.tools.capture.rows import PassRows
from samebits.tools.schema.sites import CapturePlan

if TYPE_CHECKING:
    from pathlib import Path

    from samebits.tools.schema.artifacts.capture import Replay

BATCH, LENGTH, HIDDEN = 2, 6, 8


class Linear(torch.nn.Module):
    """A linear without a fault."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight)


class Racy(Linear):
    """Parts of K in an order that nobody can put back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = sorted(range(HIDDEN), key=lambda _: os.urandom(4))
        total = torch.zeros_like(x)
        for k in order:
            total = total + x[..., k : k + 1] * self.weight[:, k]
        return total


class Shuffled(Linear):
    """Parts of K in an order drawn from torch's generator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x)
        for k in torch.randperm(HIDDEN).tolist():
            total = total + x[..., k : k + 1] * self.weight[:, k]
        return total


class Counting(Linear):
    """The result depends on how often it was called."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) * (1 + self.calls * 1e-3)


class Averaging(Linear):
    """A buffer that moves with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean += x.mean((0, 1))
        return super().forward(x) - self.mean


class Unwritten(Linear):
    """Adds memory that nobody wrote."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scratch = torch.empty(HIDDEN)
        scratch[1:] = 0
        return super().forward(x) + scratch


class Leaky(Linear):
    """Every row takes a part of the padding."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + x.sum((0, 1)) * 1e-3


class ByCount(Linear):
    """Another order of the sum when there is more than one row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[:-1].numel() > 1:
            return super().forward(x)
        return functional.linear(x[..., :3], self.weight[:, :3]) + functional.linear(x[..., 3:], self.weight[:, 3:])


class Mixing(Linear):
    """Rows add up, as in attention: a row alone is another thing, and no fault."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.cumsum(1))


class Map:
    """Row map of a padded batch: the last two rows of the second sequence are padding."""

    def current(self) -> PassRows:
        sequence_BL = torch.arange(BATCH, dtype=torch.int32)[:, None].repeat(1, LENGTH)
        sequence_BL[1, -2:] = -1
        position_BL = torch.arange(LENGTH, dtype=torch.int32).repeat(BATCH, 1)
        return PassRows(sequence_BL.view(-1), position_BL.view(-1), (BATCH, LENGTH), None)


def shown(module: torch.nn.Module, folder: Path, *, whole: bool = False) -> Replay:
    """Args: whole: small whole numbers, whose sums are exact in any order."""
    plan = CapturePlan(level="operator", replay=True)
    x_BLH = torch.randn(BATCH, LENGTH, HIDDEN, generator=torch.Generator().manual_seed(2))
    if whole:
        x_BLH.round_()
        for weight in module.parameters():
            weight.data.round_()
    with torch.no_grad(), Recorder(module, Map(), plan) as recorder:
        module(x_BLH)
    return next(replay for replay in recorder.write(folder / "capture").replays if not replay.site.op)


@pytest.mark.parametrize(
    ("module", "word", "proof"),
    [
        (Racy, "race", "generators put back"),
        (Shuffled, "race", "draws random numbers"),
        (Counting, "state", "attributes and buffers"),
        (Averaging, "state", "attributes and buffers"),
        (Unwritten, "state", "memory that nobody wrote"),
        (Leaky, "state", "2 padding rows"),
        (ByCount, "order_batch", "by themselves than among 10 rows"),
    ],
)
def test_a_planted_fault_is_shown_with_its_proof(
    module: type[torch.nn.Module], word: str, proof: str, tmp_path: Path
) -> None:
    found = shown(module(), tmp_path)
    assert found.shows == word
    assert proof in found.why


@pytest.mark.parametrize("module", [Linear, Mixing])
def test_a_module_without_a_fault_shows_nothing(module: type[torch.nn.Module], tmp_path: Path) -> None:
    found = shown(module(), tmp_path, whole=True)
    assert (found.shows, found.why, found.equal) == ("", "", True)


def test_dropout_left_on_draws_random_numbers(tmp_path: Path) -> None:
    assert shown(torch.nn.Dropout(0.5).train(), tmp_path).shows == "race"


def test_the_run_goes_on_as_if_it_had_not_been_looked_at(tmp_path: Path) -> None:
    module = Counting()
    torch.manual_seed(5)
    following = torch.rand(3)
    torch.manual_seed(5)
    shown(module, tmp_path)
    assert module.calls == 1, "one call was made, whatever was tried on it"
    assert torch.equal(torch.rand(3), following)
