"""Holes of other gates, each planted in a small real set-up: this gate must be red, or refuse.

What other gates do: hide NaN behind max(0.0, nan); cast to float32 or compare with a tolerance; pass when nothing was
compared; compare texts or probabilities; count tokens above a threshold; sum digests without order; trust a flag that
took no effect; force the ratio to 1; vary the size of a batch and not its content; look at convenient lengths only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from samebits.tools.diff import digest
from samebits.tools.gate.regression import engine_axes
from samebits.tools.schema.errors import UserError
from samebits.tools.sides.protocol import Scores
from samebits.tools.sides.scoring.torch_side import TorchSide

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("sides_here")


def planted(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any, Any, torch.Tensor], torch.Tensor]) -> None:
    """Change what a side gives: change(side, how, logprob_N)."""
    real = TorchSide.score

    def score(self: Any, data: Any, how: Any, plan: Any, edits: Any, folder: Path) -> Scores:
        scores = real(self, data, how, plan, edits, folder)
        return Scores(change(self, how, scores.logprob_N.clone()), scores.scored_N, scores.facts)

    monkeypatch.setattr(TorchSide, "score", score)


def one_ulp_up(lp_N: torch.Tensor, places: slice) -> torch.Tensor:
    lp_N.view(torch.int32)[places] += 1
    return lp_N


def outcome(report: Any, name: str) -> Any:
    return next(axis for axis in report.axes if axis.name == name).outcome


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_behind_a_maximum(gated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    def one_is_not_a_number(side: Any, _how: Any, lp_N: torch.Tensor) -> torch.Tensor:
        if side.role == "trainer":
            lp_N[3] = value
        return lp_N

    planted(monkeypatch, one_is_not_a_number)
    result, report = gated(axes=("trainer_repeat", "trainer_rollout"))
    assert max(0.0, float("nan")) == 0.0, "what hides it elsewhere"
    # Equal on both sides of the repeat, and still no equality.
    assert outcome(report, "trainer_repeat").stats.nonfinite == 1
    assert (report.verdict.kind, result.exit_code) == ("red", 1)


def test_a_tolerance_of_1e_6_and_a_cast(gated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, lambda side, _, lp: one_ulp_up(lp, slice(4, 5)) if side.role == "trainer" else lp)
    result, report = gated(axes=("trainer_rollout",))
    found = outcome(report, "trainer_rollout")
    assert found.stats.max < 1e-6, "under every such threshold"
    assert found.stats.nonzero == 1
    assert result.exit_code == 1


def test_zero_of_another_sign_is_no_equality(gated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def zero(side: Any, _how: Any, lp_N: torch.Tensor) -> torch.Tensor:
        lp_N[2] = -0.0 if side.role == "trainer" else 0.0
        return lp_N

    planted(monkeypatch, zero)
    result, _ = gated(axes=("trainer_repeat", "micro_batch"))
    assert result.exit_code == 0, "the same zero twice"

    def turns(side: Any, how: Any, lp_N: torch.Tensor) -> torch.Tensor:
        lp_N[2] = -0.0 if how.concurrency == 2 else 0.0
        return lp_N

    planted(monkeypatch, turns)
    _, report = gated(axes=("micro_batch",), job="other")
    assert outcome(report, "micro_batch").stats.max == 0.0
    assert outcome(report, "micro_batch").stats.nonzero == 1


def test_nothing_to_compare_is_no_pass(gated: Callable[..., Any], tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt_ids": [1], "sampled_ids": [3], "logprobs": [-1.0], "mask": [0]}))
    with pytest.raises(UserError, match="no valid token"):
        gated(rollout={"side": f"file:{rows}"}, axes=("trainer_rollout",))


def test_a_comparison_that_lost_tokens_is_no_pass(gated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    real = TorchSide.score

    def loses(self: Any, data: Any, how: Any, plan: Any, edits: Any, folder: Path) -> Scores:
        scores = real(self, data, how, plan, edits, folder)
        if self.role == "trainer" and how.concurrency == 2:
            scores.scored_N[:3] = False
        return scores

    monkeypatch.setattr(TorchSide, "score", loses)
    result, report = gated(axes=("micro_batch",))
    assert outcome(report, "micro_batch").status == "too_few"
    assert result.exit_code == 2


def test_the_same_text_with_other_logprobs(gated: Callable[..., Any]) -> None:
    # Tokens are forced, so every text is equal; the fault is in the logprobs alone.
    result, report = gated(rollout={"engine": {"fault": "decode"}}, axes=("decode_prefill",))
    assert outcome(report, "decode_prefill").status == "differs"
    assert result.exit_code == 1


def test_there_are_no_reruns(gated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def once(side: Any, how: Any, lp_N: torch.Tensor) -> torch.Tensor:
        if side.role == "trainer" and how.concurrency == 2:
            seen.append(how)
            return one_ulp_up(lp_N, slice(0, 1)) if len(seen) == 1 else lp_N
        return lp_N

    planted(monkeypatch, once)
    result, _ = gated(axes=("micro_batch",))
    assert result.exit_code == 1, "wrong the first time is wrong"


def test_a_difference_that_vanishes_as_a_probability(
    gated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def tiny(_side: Any, how: Any, lp_N: torch.Tensor) -> torch.Tensor:
        lp_N[5] = -121.0 if how.concurrency == 2 else -120.0
        return lp_N

    planted(monkeypatch, tiny)
    result, report = gated(axes=("trainer_repeat", "micro_batch"))
    assert torch.tensor([-120.0, -121.0]).exp().tolist() == [0.0, 0.0], "a gate on probabilities sees nothing"
    assert outcome(report, "trainer_repeat").status == "exact", "-120 twice"
    found = outcome(report, "micro_batch")
    assert (found.stats.nonzero, found.stats.max, result.exit_code) == (1, 1.0, 1)


@pytest.mark.parametrize("change", ["order", "small", "cast"])
def test_digests_see_order_small_tensors_and_casts(change: str) -> None:
    x_TD = torch.arange(8, dtype=torch.float32).view(2, 4) if change != "small" else torch.ones(1, 1)
    other = {"order": x_TD.flip(-1), "small": -x_TD, "cast": x_TD.to(torch.bfloat16)}[change]
    assert float(x_TD.abs().sum()) == float(other.float().abs().sum()), "an L1 sum sees nothing"
    assert not torch.equal(digest.digest_rows(x_TD), digest.digest_rows(other))


def test_a_flag_that_took_no_effect(gated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    real = TorchSide.score

    def deaf(self: Any, data: Any, how: Any, plan: Any, edits: Any, folder: Path) -> Scores:
        if self.role == "trainer":
            how = how.model_copy(update={"concurrency": None, "layout": ""})
        return real(self, data, how, plan, edits, folder)

    monkeypatch.setattr(TorchSide, "score", deaf)
    result, report = gated(axes=("micro_batch", "layout", "trainer_repeat"), require=("micro_batch",))
    for name in ("micro_batch", "layout"):
        assert outcome(report, name).status == "not_run", "the side's own facts say so"
    assert result.exit_code == 2


def test_a_control_without_effect_makes_the_check_vacuous(
    gated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = TorchSide.score

    def no_edits(self: Any, data: Any, how: Any, plan: Any, edits: Any, folder: Path) -> Scores:
        return real(self, data, how, plan, (), folder)

    monkeypatch.setattr(TorchSide, "score", no_edits)
    result, report = gated(axes=("trainer_repeat",))
    assert outcome(report, "trainer_repeat").status == "vacuous"
    assert result.exit_code == 2


def test_a_ratio_forced_to_one(gated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    real = TorchSide.score

    def hands_back(self: Any, data: Any, how: Any, plan: Any, edits: Any, folder: Path) -> Scores:
        scores = real(self, data, how, plan, edits, folder)
        return scores if self.role == "rollout" else Scores(data.logprob_N, scores.scored_N, scores.facts)

    monkeypatch.setattr(TorchSide, "score", hands_back)
    result, report = gated(axes=("trainer_rollout",))
    assert outcome(report, "trainer_rollout").status == "vacuous"
    assert result.exit_code == 2


def test_only_the_content_of_a_batch_matters() -> None:
    # One dynamic scale over the batch: see test_engine_axes.py, where an engine has it; here, that content is swept.
    from samebits.tools.gate.regression.company import companies
    from samebits.tools.sides.protocol import RolloutData, Sequence

    sequences = [Sequence(list(range(n)), [2, 3]) for n in (3, 9, 4, 5)]
    data = RolloutData(sequences, torch.zeros(8), torch.ones(8, dtype=torch.bool))
    contents = [[s.prompt for s in one.data.sequences[1::2]] for one in companies(data)]
    assert len({json.dumps(content) for content in contents}) == 3
    assert all(one.data.sequences[0] is sequences[0] for one in companies(data))


def test_a_fault_at_one_length_alone(gated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    real = TorchSide.score

    def at_sixteen(self: Any, data: Any, how: Any, plan: Any, edits: Any, folder: Path) -> Scores:
        scores = real(self, data, how, plan, edits, folder)
        start = 0
        for sequence in data.sequences:
            if len(sequence.prompt) == 16 and how.path == "prefill":
                one_ulp_up(scores.logprob_N, slice(start, start + 1))
            start += len(sequence.sampled)
        return scores

    monkeypatch.setattr(TorchSide, "score", at_sixteen)
    _, report = gated(axes=("decode_prefill", "lengths"))
    assert outcome(report, "decode_prefill").status == "exact", "the rollout has no prompt of 16 tokens"
    assert outcome(report, "lengths").status == "differs"
    assert engine_axes.around((16,)) == [15, 16, 17]
