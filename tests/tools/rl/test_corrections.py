"""Each correction against numbers worked out by hand, and each with a case in which it must act."""

from __future__ import annotations

import math

import pytest
import torch

from samebits.tools.rl.corrections import (
    NAMES,
    advantages,
    binary_kl,
    flash_advantages,
    group_advantages,
    weigh,
)
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Correction, Rl

SETTINGS = Rl()
RATIO = [4.0, 1.0, 0.25, 1.5, 1.0]
"""Of two sequences: three tokens and two."""
LENGTHS = [3, 2]


def sides(ratio: list[float]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rollout_N = torch.full((len(ratio),), -2.0)
    return rollout_N + torch.tensor(ratio).log(), rollout_N, torch.ones(len(ratio), dtype=torch.bool)


def weights(name: Correction, ratio: list[float] = RATIO, lengths: list[int] = LENGTHS, **changes: object) -> tuple:
    settings = SETTINGS.model_copy(update=changes)
    found = weigh(name, *sides(ratio), lengths, settings)
    return [round(float(w), 5) for w in found.weight_N], found


@pytest.mark.parametrize(
    ("name", "expected", "counted"),
    [
        ("none", [1, 1, 1, 1, 1], 5),
        ("is", [4, 1, 0.25, 1.5, 1], 5),
        ("tis", [2, 1, 0.25, 1.5, 1], 5),
        ("centering", [2, 1, 0.25, 1.5, 1], 5),
        ("mis", [0, 1, 0, 1.5, 1], 3),
        ("icepop", [0, 1, 0, 1.5, 1], 5),
    ],
)
def test_token_weights_by_hand(name: Correction, expected: list[float], counted: int) -> None:
    found, whole = weights(name)
    assert found == expected
    scales = [float(s) for s in whole.scale_N]
    # What is masked leaves the denominator; a weight of zero stays in it.
    assert [round(s, 6) for s in scales if s] == [round(1 / counted, 6)] * counted


def test_the_cap_is_hit_exactly_and_a_ratio_at_an_edge_of_the_band_is_kept() -> None:
    assert weights("tis", [2.0, 2.0000002], [2])[1].truncated == 1
    assert weights("icepop", [0.5, 2.0, 2.1], [3])[0][2] == 0
    assert weights("icepop", [0.5, 2.0, 2.1], [3])[0][:2] == [0.5, 2.0]


def test_the_geometric_mean_keeps_a_sequence_whose_tokens_cancel_and_drops_the_other() -> None:
    # exp(mean l) is 1 in the first sequence, sqrt(1.5) in the second.
    found, whole = weights("geometric")
    assert found == [4, 1, 0.25, 0, 0]
    assert whole.kept == pytest.approx(3 / 5)
    assert [round(float(s), 6) for s in whole.scale_N] == [round(1 / 3, 6)] * 3 + [0, 0]
    kept, _ = weights("geometric", geometric_band=(0.5, 2.0))
    assert kept == RATIO, "a wider band keeps both"


def test_the_binary_kl_has_its_published_values() -> None:
    # d(q = 1/3, p = 1) = 8.57 and d(0.505, 0.5) = 5.0e-5, of the method's own reference.
    far, near = binary_kl(torch.tensor([1 / 3, 0.505]).log(), torch.tensor([1.0, 0.5]).log()).tolist()
    assert far == pytest.approx(8.57, abs=0.01)
    assert near == pytest.approx(5.0e-5, rel=0.01)
    q, p = 0.3, 0.2
    by_hand = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    assert float(binary_kl(torch.tensor([q]).log(), torch.tensor([p]).log())) == pytest.approx(by_hand, rel=1e-5)


def test_flash_rejects_whole_sequences_by_their_own_mean_and_keeps_the_counts() -> None:
    rollout_N, valid_N = torch.tensor([0.3, 0.3, 0.5, 0.5]).log(), torch.ones(4, dtype=torch.bool)
    trainer_N = torch.tensor([0.2, 0.3, 0.5, 0.5005]).log()
    gate = float(binary_kl(rollout_N[:1], trainer_N[:1])) / 2
    assert gate > SETTINGS.delta
    found = weigh("flash", trainer_N, rollout_N, valid_N, [2, 2], SETTINGS)
    assert found.weight_N.tolist()[:2] == [0, 0]
    assert found.weight_N.tolist()[2:] == pytest.approx([1, 1.001])
    # 1 / (B T_i) with B = 2 and T_i = 2, also for the sequence that was dropped.
    assert found.scale_N.tolist() == [0.25] * 4
    loose = SETTINGS.model_copy(update={"delta": gate * 1.01})
    assert weigh("flash", trainer_N, rollout_N, valid_N, [2, 2], loose).kept == 1.0


def test_flash_weights_are_not_truncated() -> None:
    ratio = weights("flash", [5.0, 1.0], [2], delta=1e9)[0]
    assert ratio == [5, 1]


def test_advantages_by_hand() -> None:
    reward_S = torch.tensor([1.0, 0.0, 0.0, 0.0])
    assert flash_advantages(reward_S).tolist() == [0.75, -0.25, -0.25, -0.25]
    assert group_advantages(reward_S, 2, scale_by_std=False).tolist() == [0.5, -0.5, 0, 0]
    scaled = group_advantages(reward_S, 2, scale_by_std=True).tolist()
    assert scaled == pytest.approx([0.5**0.5, -(0.5**0.5), 0, 0], abs=1e-5)
    settings = SETTINGS.model_copy(update={"group": 2})
    assert advantages("flash", reward_S, settings).tolist() != advantages("tis", reward_S, settings).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_with_equal_bits_every_correction_is_the_identity_and_one_ulp_shows(name: Correction) -> None:
    lp_N, valid_N = -torch.rand(20, generator=torch.Generator().manual_seed(1)) * 5 - 0.1, torch.ones(20).bool()
    same = weigh(name, lp_N, lp_N.clone(), valid_N, [12, 8], SETTINGS)
    assert same.weight_N.tolist() == [1.0] * 20
    assert (same.mean, same.kept, same.truncated) == (1.0, 1.0, 0)
    moved_N = (lp_N.view(torch.int32) - 1).view(torch.float32)
    other = weigh(name, moved_N, lp_N, valid_N, [12, 8], SETTINGS)
    assert (other.weight_N.tolist() == [1.0] * 20) == (name == "none")


@pytest.mark.parametrize("name", NAMES)
def test_what_stands_under_an_invalid_token_does_not_matter(name: Correction) -> None:
    trainer_N, rollout_N, valid_N = sides([1.0, 1.2, 0.9, 1.0])
    valid_N[1] = False
    plain = weigh(name, trainer_N, rollout_N, valid_N, [2, 2], SETTINGS)
    rollout_N[1] = math.nan
    assert torch.equal(weigh(name, trainer_N, rollout_N, valid_N, [2, 2], SETTINGS).weight_N, plain.weight_N)
    assert plain.weight_N[1] == plain.scale_N[1] == 0
    if name == "flash":
        assert plain.scale_N.tolist() == [0.5, 0, 0.25, 0.25]


def test_no_valid_token_and_logprobs_that_are_not_finite_are_refused() -> None:
    trainer_N, rollout_N, valid_N = sides([1.0, 1.0])
    with pytest.raises(UserError, match="no valid token"):
        weigh("tis", trainer_N, rollout_N, ~valid_N, [2], SETTINGS)
    for side, other in ((math.nan, "rollout"), (-math.inf, "rollout")):
        bad_N = torch.tensor([side, -1.0])
        with pytest.raises(UserError, match=f"1 valid tokens: the {other} side's logprob is NaN or infinite"):
            weigh("none", trainer_N, bad_N, valid_N, [2], SETTINGS)
    with pytest.raises(UserError, match="the trainer side's"):
        weigh("none", torch.tensor([math.inf, -1.0]), rollout_N, valid_N, [2], SETTINGS)


def test_a_huge_ratio_does_not_overflow() -> None:
    found = weigh("is", torch.tensor([-1.0]), torch.tensor([-1000.0]), torch.ones(1).bool(), [1], SETTINGS)
    assert float(found.weight_N) == pytest.approx(math.exp(20), rel=1e-5)


def test_the_effective_sample_size_by_hand() -> None:
    # Weights 1, 1, 0 of three: (2^2) / (3 * 2).
    _, found = weights("icepop", [1.0, 1.0, 9.0], [3])
    assert found.effective == pytest.approx(4 / 6)
