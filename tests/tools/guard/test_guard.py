"""The guard of a training loop: figures, lines, stored batches, and that it cannot be fooled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from samebits.tools.guard import Guard, NotExact
from samebits.tools.job.rollouts import stored
from samebits.tools.schema.errors import UserError
from samebits.tools.sides import rollout_store


def batch(count: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    lp_N = -torch.arange(1, count + 1, dtype=torch.float32) / 3
    return lp_N, lp_N.clone(), torch.ones(count, dtype=torch.bool)


def one_ulp(value: torch.Tensor) -> torch.Tensor:
    return value.view(torch.int32).add(1).view(torch.float32)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "guard.jsonl").read_text().splitlines()]


def test_equal_bits_pass_and_leave_one_line_each(tmp_path: Path) -> None:
    guard = Guard(tmp_path)
    for version in (0, 1):
        assert guard.check(*batch(), version).exact
    written = lines(tmp_path)
    assert [(line["weight_version"], line["tokens"], line["nonzero"]) for line in written] == [(0, 6, 0), (1, 6, 0)]
    assert [written[0][key] for key in ("max", "mean", "std", "k3", "stored")] == [0, 0, 0, 0, ""]
    assert [path.name for path in tmp_path.iterdir()] == ["guard.jsonl"]


def test_one_ulp_in_one_token_raises_and_names_the_stored_batch(tmp_path: Path) -> None:
    rollout, trainer, mask = batch()
    trainer[3] = one_ulp(trainer[3:4])[0]
    guard = Guard(tmp_path)
    with pytest.raises(NotExact, match="1 of 6 valid tokens") as caught:
        guard.check(rollout, trainer, mask, 7)
    assert caught.value.stats.nonzero == 1
    assert caught.value.stored is not None
    assert caught.value.stored.name == "batch.safetensors"
    assert lines(tmp_path)[0]["nonzero"] == 1


def test_a_masked_token_may_differ_and_minus_zero_may_not(tmp_path: Path) -> None:
    rollout, trainer, mask = batch()
    trainer[2], mask[2] = 0.5, False
    assert Guard(tmp_path).check(rollout, trainer, mask, 0).tokens == 5
    rollout[0], trainer[0] = 0.0, -0.0
    with pytest.raises(NotExact):
        Guard(tmp_path).check(rollout, trainer, mask, 0)


def test_with_continue_only_the_first_batch_is_stored(tmp_path: Path) -> None:
    guard = Guard(tmp_path, on_difference="continue")
    rollout, trainer, mask = batch()
    for _ in range(3):
        assert guard.check(rollout, trainer + 0.5, mask, 1).nonzero == 6
    assert [bool(line["stored"]) for line in lines(tmp_path)] == [True, False, False]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["difference-1", "guard.jsonl"]


def test_with_ids_the_stored_batch_is_a_rollout_that_diff_takes(tmp_path: Path) -> None:
    guard = Guard(tmp_path, temperature=0.7)
    rollout, mask = -torch.rand(2, 3), torch.tensor([[1, 1, 0], [1, 0, 0]])
    trainer = rollout.clone()
    trainer[1, 0] += 0.25
    ids: dict[str, Any] = {"prompt_ids": [[1, 2], [3]], "sampled_ids": [[4, 5], [6, 7, 8]]}
    with pytest.raises(NotExact, match="samebits diff --rollout") as caught:
        guard.check(rollout, trainer, mask, 3, **ids)
    assert caught.value.stored is not None
    folder = stored(caught.value.stored, None)  # type: ignore[arg-type]
    data = rollout_store.read(folder)
    assert [(s.prompt, s.sampled) for s in data.sequences] == [([1, 2], [4, 5]), ([3], [6, 7, 8])]
    assert data.logprob_N.tolist() == [*rollout[0, :2].tolist(), *rollout[1].tolist()]
    assert data.valid_N.tolist() == [True, True, True, False, False]
    assert (data.weight_version, data.temperature) == (3, 0.7)


def test_nothing_valid_proves_nothing(tmp_path: Path) -> None:
    rollout, trainer, mask = batch()
    with pytest.raises(UserError, match="no valid token"):
        Guard(tmp_path, on_difference="continue").check(rollout, trainer, mask & False, 0)
    with pytest.raises(UserError, match="no valid token"):
        Guard(tmp_path).check(*(tensor[:0] for tensor in batch()), 0)
    assert lines(tmp_path)[0]["tokens"] == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_refused_even_when_both_sides_have_it(tmp_path: Path, value: float) -> None:
    rollout, trainer, mask = batch()
    rollout[1] = trainer[1] = value
    with pytest.raises(UserError, match="1 of 6 valid tokens have a logprob that is NaN or infinite"):
        Guard(tmp_path, on_difference="continue").check(rollout, trainer, mask, 0)
    assert (tmp_path / "difference-1" / "batch.safetensors").is_file()
    for _ in range(2):
        with pytest.raises(UserError) as caught:
            Guard(tmp_path).check(rollout, trainer, mask, 0, prompt_ids=[[1]], sampled_ids=[[1] * 6])
        assert str(caught.value).lower().count("next:") == 1
        assert "difference-" in caught.value.reason
    mask[1] = False
    assert Guard(tmp_path).check(rollout, trainer, mask, 0).exact


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"trainer_lp": torch.zeros(5)}, "shapes must be equal"),
        ({"mask": torch.ones(6, 1, dtype=torch.bool)}, "shapes must be equal"),
        ({"trainer_lp": torch.zeros(6, dtype=torch.bfloat16)}, "not float32"),
        ({"rollout_lp": torch.zeros(6, dtype=torch.float64)}, "not float32"),
        ({"rollout_lp": [0.0] * 6}, "rollout_lp: a list, not a tensor"),
        ({"mask": torch.ones(6)}, "a weight is no mask"),
        ({"weight_version": -1}, "not a count"),
        ({"prompt_ids": [[1]]}, "must come together"),
        ({"prompt_ids": [[]], "sampled_ids": [[1] * 6]}, r"prompt_ids\[0\]: empty"),
        ({"prompt_ids": [[1]], "sampled_ids": [[1] * 5]}, "5 tokens in all for 6 logprobs"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_written(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    rollout, trainer, mask = batch()
    given_ = {"rollout_lp": rollout, "trainer_lp": trainer, "mask": mask, "weight_version": 0} | change
    with pytest.raises(UserError, match=said):
        Guard(tmp_path).check(**given_)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="on_difference"):
        Guard(tmp_path, on_difference="ignore")  # type: ignore[arg-type]
