"""The table of corrections where a batch has no exact gradient, or a correction drops everything."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from samebits.tools.rl import compare
from samebits.tools.rl.compare import Comparison, Tally
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Rl

TRUTH_G, OTHER_G = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])


def tally(*pairs: tuple[torch.Tensor, torch.Tensor]) -> Tally:
    made = Tally(k3=[0.0], kept=[1.0], truncated=[0.0], seconds=[1.0])
    for g_G, truth_G in pairs:
        made.add(g_G, truth_G)
    return made


def test_a_single_batch_has_a_bias_and_no_noise() -> None:
    row = tally((OTHER_G, TRUTH_G)).row("tis")
    assert row.bias == row.relative == pytest.approx(0.1)
    assert math.isnan(row.noise)
    assert tally((OTHER_G, TRUTH_G), (TRUTH_G, TRUTH_G)).row("tis").noise == pytest.approx(0.05)


def test_a_correction_that_drops_everything_says_so_and_keeps_the_cosine_of_the_others() -> None:
    row = tally((OTHER_G, TRUTH_G), (torch.zeros(2), TRUTH_G)).row("mis", "own")
    assert 0.99 < row.cosine < 1
    assert row.note == "own; drops everything in 1 of 2 batches: no cosine there"
    assert tally((OTHER_G, TRUTH_G)).row("mis").note == ""


def comparison(monkeypatch: pytest.MonkeyPatch, truths: list[torch.Tensor]) -> Comparison:
    """With batches of these exact gradients; the stock trainer is off by a little in every correction."""
    given = iter(truths)

    def truth(self: Comparison, *_: Any) -> dict[str, torch.Tensor]:
        truth_G = next(given)
        self.exact_N = torch.tensor([-1.0])
        return {"none": truth_G, "flash": truth_G}

    def one(self: Comparison, label: str, _batch: Any, _name: Any, truth_G: torch.Tensor, _around: Any) -> None:
        mine = self.tallies.setdefault(label, Tally())
        mine.add(truth_G + 0.1, truth_G)
        for values in (mine.k3, mine.kept, mine.truncated, mine.seconds):
            values.append(0.5)
        if label == "none":
            self.stock.append(torch.tensor([-1.5]))

    def learned(*_: Any) -> None: ...

    monkeypatch.setattr(Comparison, "_truth", truth)
    monkeypatch.setattr(Comparison, "_one", one)
    monkeypatch.setattr(compare, "learn", learned)
    policy: Any = SimpleNamespace(unpatch=lambda: None, patch=lambda _: None, flat_gradient=lambda: TRUTH_G)
    engine: Any = None
    made = Comparison(engine, policy, Rl(batches=max(2, len(truths)), prompts=2, group=2, warmup_steps=7), "vllm")
    batch: Any = SimpleNamespace(data=SimpleNamespace(logprob_N=torch.tensor([-1.0])))
    drawn: Any = SimpleNamespace(routing=None)
    made.sampling = {"plain": [0.0], "more": [0.0]}
    for _ in truths:
        made.batch(drawn, batch)
    return made


def test_batches_without_an_exact_gradient_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compare._compared(comparison(monkeypatch, [TRUTH_G, torch.zeros(2), TRUTH_G]))
    assert found.left_out == 1
    assert found.notes[0] == (
        "1 of 3 batches left out: their exact gradient is zero (all answers to a prompt have the same reward); every "
        "row is about the other 2"
    )
    assert found.truth.tokens == found.mismatch.tokens == 2
    assert all(math.isfinite(value) for row in found.rows for value in (row.cosine, row.relative, row.bias, row.noise))
    assert compare._compared(comparison(monkeypatch, [TRUTH_G, TRUTH_G])).left_out == 0


def test_one_batch_that_is_left_is_said_to_show_no_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compare._compared(comparison(monkeypatch, [torch.zeros(2), TRUTH_G]))
    assert found.notes[0].startswith("one batch alone")
    assert all(math.isnan(row.noise) and math.isfinite(row.bias) for row in found.rows)


def test_without_any_exact_gradient_there_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="all 2 batches of 2 prompts x 2 answers: have an exact gradient of") as caught:
        compare._compared(comparison(monkeypatch, [torch.zeros(2), torch.zeros(2)]))
    assert "warmup_steps (here 7)" in caught.value.next_step
