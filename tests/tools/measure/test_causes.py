"""Each cause of data or meaning: planted and found; and never named where only numerics differ."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from samebits.tools.measure import gap as figures
from samebits.tools.measure.causes import Gap, find_causes
from samebits.tools.measure.remedies import remedy
from samebits.tools.schema.experiment import Workload
from samebits.tools.schema.passes import How, Reading
from samebits.tools.sides.protocol import RolloutData, Sequence
from samebits.tools.sides.scoring.logprob import Processing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samebits.tools.schema.artifacts.gap import NotNumerics
    from samebits.tools.sides.transformers.side import TransformersSide

ASKED = {"prompts": 6, "prompt_tokens": (3, 24), "new_tokens": 12}


@pytest.fixture(scope="module")
def sample(models: Callable[..., Path], open_side: Callable[..., TransformersSide]) -> Callable[..., RolloutData]:
    """A rollout decoded token by token: against the trainer's prefill it differs by numerics, and by what is
    planted.
    """
    made: dict[Any, RolloutData] = {}

    def rollout(dtype: str = "float32", mode: str = "processed", **workload: Any) -> RolloutData:
        key = (dtype, mode, tuple(sorted(workload.items())))
        if key not in made:
            side = open_side("rollout", models(dtype=dtype), dtype=dtype, logprobs=mode)
            made[key] = side.generate(Workload(**(ASKED | workload)))
        data = made[key]
        return replace(data, logprob_N=data.logprob_N.clone(), valid_N=data.valid_N.clone())

    return rollout


@pytest.fixture(scope="module")
def trainers(
    models: Callable[..., Path], open_side: Callable[..., TransformersSide]
) -> Callable[..., TransformersSide]:
    opened: dict[tuple[str, int], TransformersSide] = {}

    def trainer(dtype: str = "float32", seed: int = 0) -> TransformersSide:
        if (dtype, seed) not in opened:
            opened[dtype, seed] = open_side("trainer", models(dtype=dtype, seed=seed), dtype=dtype)
        return opened[dtype, seed]

    return trainer


def causes_of(data: RolloutData, trainer: TransformersSide, tmp_path: Path) -> tuple[NotNumerics, ...]:
    scores = trainer.score(data, How(), None, (), tmp_path)
    own = Processing.of(data)
    reading = Reading(temperature=own.temperature, top_p=own.top_p, top_k=own.top_k)
    return find_causes(Gap(data, scores.logprob_N, lambda asked: trainer.readings(data, asked), reading))


def starts(data: RolloutData) -> list[int]:
    out = [0]
    for sequence in data.sequences:
        out.append(out[-1] + len(sequence.sampled))
    return out


def warm(sample: Callable[..., RolloutData]) -> RolloutData:
    """Sampled and reported at temperature 0.7, recorded as 1."""
    return replace(sample(temperature=0.7), temperature=1.0)


def odd_temperature(sample: Callable[..., RolloutData]) -> RolloutData:
    return replace(sample(temperature=0.8437), temperature=1.0)


def divided(sample: Callable[..., RolloutData]) -> RolloutData:
    data = sample()
    return replace(data, logprob_N=data.logprob_N / 0.7)


def nucleus(sample: Callable[..., RolloutData]) -> RolloutData:
    return replace(sample(top_p=0.8), top_p=1.0)


def odd_nucleus(sample: Callable[..., RolloutData]) -> RolloutData:
    return replace(sample(top_p=0.637), top_p=1.0)


def top_k(sample: Callable[..., RolloutData]) -> RolloutData:
    return replace(sample(top_k=23), top_k=0)


def raw(sample: Callable[..., RolloutData]) -> RolloutData:
    """Raw logprobs that the record calls processed."""
    return replace(sample(mode="raw", temperature=0.6), logprobs="processed")


def processed(sample: Callable[..., RolloutData]) -> RolloutData:
    return replace(sample(temperature=0.6, top_p=0.9), logprobs="raw")


def one_late(sample: Callable[..., RolloutData]) -> RolloutData:
    """The column rolled by one inside each sequence."""
    data = sample()
    parts = [data.logprob_N[a:b].roll(1) for a, b in zip(starts(data), starts(data)[1:], strict=False)]
    return replace(data, logprob_N=torch.cat(parts))


def ends_at_zero(sample: Callable[..., RolloutData]) -> RolloutData:
    """The end token's logprob was never computed."""
    data = sample()
    data.logprob_N[torch.tensor(starts(data)[1:]) - 1] = 0.0
    return data


def padding_counted(sample: Callable[..., RolloutData]) -> RolloutData:
    data = sample()
    sequences, logprobs = [], []
    for sequence, a, b in zip(data.sequences, starts(data), starts(data)[1:], strict=False):
        sequences.append(Sequence(sequence.prompt, [*sequence.sampled, 0, 0, 0]))
        logprobs.append(torch.cat([data.logprob_N[a:b], torch.full((3,), -0.25)]))
    logprob_N = torch.cat(logprobs)
    return replace(data, sequences=sequences, logprob_N=logprob_N, valid_N=torch.ones(len(logprob_N), dtype=torch.bool))


def through(dtype: torch.dtype) -> Callable[[Callable[..., RolloutData]], RolloutData]:
    def plant(sample: Callable[..., RolloutData]) -> RolloutData:
        data = sample()
        return replace(data, logprob_N=data.logprob_N.to(dtype).float())

    return plant


def four_places(sample: Callable[..., RolloutData]) -> RolloutData:
    data = sample()
    return replace(
        data, logprob_N=torch.tensor([float(f"{x:.4f}") for x in data.logprob_N.tolist()], dtype=torch.float32)
    )


@pytest.mark.parametrize(
    ("plant", "cause", "words"),
    [
        (warm, "temperature", "temperature 0.7,"),
        (odd_temperature, "temperature", "temperature 0.843"),
        (divided, "temperature", "divided by 0.7"),
        (nucleus, "top_p", "top-p 0.8"),
        (odd_nucleus, "top_p", "kept top-p 0.6"),
        (top_k, "top_k", "kept 23 tokens"),
        (raw, "raw_processed", "reports raw"),
        (processed, "raw_processed", "reports processed"),
        (one_late, "shift", "lag -1"),
        (ends_at_zero, "end_token", "exactly 0"),
        (padding_counted, "end_token", "repeated token"),
        (through(torch.bfloat16), "transport_rounding", "bfloat16"),
        (through(torch.float16), "transport_rounding", "float16"),
        (four_places, "transport_rounding", "4 places"),
    ],
)
def test_a_planted_cause_is_named_first_and_its_closed_form_leaves_next_to_nothing(
    plant: Callable[..., RolloutData],
    cause: str,
    words: str,
    sample: Callable[..., RolloutData],
    trainers: Callable[..., TransformersSide],
    tmp_path: Path,
) -> None:
    found = causes_of(plant(sample), trainers(), tmp_path)
    assert found, "no cause named"
    assert (found[0].cause, words in found[0].explanation) == (cause, True), found
    # Two float32 computations of the same logprob are what is left.
    assert found[0].residual < 1e-5 < found[0].before
    assert remedy(found[0].cause)


@pytest.mark.parametrize("lanes", [64, -40])
def test_padded_lanes_counted_in_the_sum_are_found_with_their_number(
    lanes: int, sample: Callable[..., RolloutData], trainers: Callable[..., TransformersSide], tmp_path: Path
) -> None:
    data = sample()
    total_N = trainers().readings(data, (Reading(),))["total.0"]
    data.logprob_N = (data.logprob_N.double() - torch.log1p(lanes * (-total_N).exp())).float()
    found = causes_of(data, trainers(), tmp_path)
    assert (found[0].cause, f"counts {abs(lanes)} lanes" in found[0].explanation) == ("padded_vocabulary", True), found


@pytest.mark.parametrize("shift", [-1, 1])
def test_logprobs_taken_from_the_neighbouring_row_of_logits_are_a_shift(
    shift: int, sample: Callable[..., RolloutData], trainers: Callable[..., TransformersSide], tmp_path: Path
) -> None:
    data = sample()
    wrong_N = trainers().readings(data, (Reading(row_shift=shift),))["logprob.0"].float()
    data.valid_N &= wrong_N.isfinite()
    data.logprob_N = wrong_N
    found = causes_of(data, trainers(), tmp_path)
    assert (found[0].cause, "row too" in found[0].explanation) == ("shift", True), found


def test_a_temperature_is_named_through_the_noise_of_bfloat16(
    sample: Callable[..., RolloutData], trainers: Callable[..., TransformersSide], tmp_path: Path
) -> None:
    data = replace(sample("bfloat16", temperature=0.5), temperature=1.0)
    found = causes_of(data, trainers("bfloat16"), tmp_path)
    assert found[0].cause == "temperature"
    assert found[0].residual > 1e-4, "bfloat16 numerics are still there"


@pytest.mark.parametrize(
    ("dtype", "workload"),
    [
        ("float32", {}),
        ("bfloat16", {}),
        ("bfloat16", {"temperature": 0.7}),
        ("float32", {"top_p": 0.8}),
        ("float32", {"top_k": 20}),
        ("bfloat16", {"temperature": 0.0}),
        ("bfloat16", {"prompts": 1, "new_tokens": 1}),
    ],
)
def test_numerics_alone_are_given_no_cause(
    dtype: str,
    workload: dict[str, Any],
    sample: Callable[..., RolloutData],
    trainers: Callable[..., TransformersSide],
    tmp_path: Path,
) -> None:
    data = sample(dtype, **workload)
    scores = trainers(dtype).score(data, How(), None, (), tmp_path)
    assert figures.stats(data.logprob_N, scores.logprob_N, data.valid_N).nonzero, (
        "the control must have a difference to explain"
    )
    assert causes_of(data, trainers(dtype), tmp_path) == ()


@pytest.mark.parametrize("size", [1e-6, 1e-3, 0.1])
def test_random_noise_of_any_size_is_given_no_cause(
    size: float, sample: Callable[..., RolloutData], trainers: Callable[..., TransformersSide], tmp_path: Path
) -> None:
    data = sample()
    data.logprob_N += size * torch.randn(len(data.logprob_N), generator=torch.Generator().manual_seed(3))
    assert causes_of(data, trainers(), tmp_path) == ()


def test_other_weights_are_given_no_cause_of_meaning(
    sample: Callable[..., RolloutData], trainers: Callable[..., TransformersSide], tmp_path: Path
) -> None:
    assert causes_of(sample(), trainers(seed=1), tmp_path) == ()


def test_a_kept_set_that_is_the_whole_vocabulary_is_no_cause(
    sample: Callable[..., RolloutData], trainers: Callable[..., TransformersSide], tmp_path: Path
) -> None:
    """Processed at temperature 0.6, called raw: the temperature explains it, and a top-k of everything adds nothing."""
    data = replace(sample(temperature=0.6), logprobs="raw")
    found = causes_of(data, trainers(), tmp_path)
    assert "raw_processed" in {cause.cause for cause in found}
    assert {cause.cause for cause in found}.isdisjoint({"top_k", "top_p"}), found
