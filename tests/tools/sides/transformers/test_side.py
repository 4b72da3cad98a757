"""The transformers side: layouts, dtypes, processing, capture, update steps, and broken folders."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch

from samebits.tools.measure.gap import differs, stats
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Workload
from samebits.tools.schema.passes import How, Open, Reading, Step
from samebits.tools.sides.model_folder import check_model_folder
from samebits.tools.sides.protocol import Sequence
from samebits.tools.sides.scoring.batches import cut

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samebits.tools.sides.protocol import RolloutData
    from samebits.tools.sides.transformers.side import TransformersSide

Models = "Callable[..., Path]"
FAMILIES = ("qwen3", "qwen3_tied", "llama", "qwen3_moe")


@pytest.fixture(scope="module")
def data(models: Callable[..., Path], open_side: Callable[..., TransformersSide]) -> RolloutData:
    return open_side("rollout", models()).generate(Workload(prompts=5, prompt_tokens=(2, 17), new_tokens=6))


def reference(folder: Path, data: RolloutData, temperature: float = 1.0) -> torch.Tensor:
    """Plain transformers, one sequence at a time, float64 after the logits."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    parts = []
    for sequence in data.sequences:
        with torch.no_grad():
            logits = model(torch.tensor([sequence.prompt + sequence.sampled])).logits[0].double() / temperature
        rows = logits[len(sequence.prompt) - 1 : -1].log_softmax(-1)
        parts.append(rows.gather(1, torch.tensor(sequence.sampled)[:, None])[:, 0])
    return torch.cat(parts)


@pytest.mark.parametrize("layout", ["single", "padded", "packed"])
def test_every_layout_gives_each_token_its_own_logprob(
    layout: str,
    data: RolloutData,
    models: Callable[..., Path],
    open_side: Callable[..., TransformersSide],
    tmp_path: Path,
) -> None:
    side = open_side("trainer", models(), layout=layout, micro_batch=3)
    scores = side.score(data, How(), None, (), tmp_path)
    assert scores.scored_N.all()
    assert scores.logprob_N.dtype == torch.float32
    assert (scores.logprob_N.double() - reference(models(), data)).abs().max() < 1e-4
    assert scores.facts["largest_batch"] == (1 if layout == "single" else 3)
    backwards = side.score(data, How(reverse=True), None, (), tmp_path)
    assert (scores.logprob_N - backwards.logprob_N).abs().max() < 1e-4


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_company_in_a_batch_leaks_nothing(
    layout: str,
    data: RolloutData,
    models: Callable[..., Path],
    open_side: Callable[..., TransformersSide],
    tmp_path: Path,
) -> None:
    from dataclasses import replace

    side = open_side("trainer", models(), layout=layout, micro_batch=5)
    first = side.score(data, How(), None, (), tmp_path).logprob_N
    other = [data.sequences[0], *(Sequence([9] * len(s.prompt), s.sampled) for s in data.sequences[1:])]
    second = side.score(replace(data, sequences=other), How(), None, (), tmp_path).logprob_N
    count = len(data.sequences[0].sampled)
    assert not differs(first[:count], second[:count]).any()
    assert differs(first[count:], second[count:]).any(), "the control: company itself did change"


def test_row_maps_name_every_row_and_padding_is_no_row(data: RolloutData) -> None:
    for layout in ("single", "padded", "packed"):
        fed: dict[tuple[int, int], int] = {}
        targets: dict[int, int] = {}
        for batch in cut(data.sequences, layout, 3):  # type: ignore[arg-type]
            ids = batch.ids_BL.view(-1).tolist()
            rows = list(zip(batch.rows.sequence_T.tolist(), batch.rows.position_T.tolist(), strict=True))
            fed |= {row: ids[t] for t, row in enumerate(rows) if row[0] >= 0}
            assert batch.rows.head_R is not None
            for head, target, out in zip(
                batch.rows.head_R.tolist(), batch.targets_R.tolist(), batch.out_R.tolist(), strict=True
            ):
                sequence, position = rows[head]
                whole = data.sequences[sequence].prompt + data.sequences[sequence].sampled
                assert whole[position + 1] == target
                targets[out] = target
        assert fed == {(i, p): t for i, s in enumerate(data.sequences) for p, t in enumerate(s.tokens)}
        assert targets == dict(enumerate(t for s in data.sequences for t in s.sampled))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_dtypes_and_attentions_load_and_are_said(
    dtype: str,
    attention: str,
    data: RolloutData,
    models: Callable[..., Path],
    open_side: Callable[..., TransformersSide],
    tmp_path: Path,
) -> None:
    side = open_side("trainer", models(), dtype=dtype, attention=attention)
    assert (side.describe()[0]["dtype"], side.describe()[0]["attention"]) == (dtype, attention)
    assert side.score(data, How(), None, (), tmp_path).logprob_N.isfinite().all()


def test_the_two_formulas_agree_as_values_and_not_as_bits(
    data: RolloutData, models: Callable[..., Path], open_side: Callable[..., TransformersSide], tmp_path: Path
) -> None:
    scores = [
        open_side("trainer", models(), logprob=f).score(data, How(), None, (), tmp_path).logprob_N
        for f in ("logsumexp", "log_softmax")
    ]
    found = stats(scores[0], scores[1], data.valid_N)
    assert found.nonzero > 0
    assert found.max < 1e-5


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7},
        {"top_k": 9},
        {"top_p": 0.6},
        {"temperature": 1.3, "top_k": 40, "top_p": 0.9},
        {"temperature": 0.0},
    ],
)
def test_processed_logprobs_are_recomputed_as_the_engine_made_them(
    settings: dict[str, Any], models: Callable[..., Path], open_side: Callable[..., TransformersSide], tmp_path: Path
) -> None:
    sampled = open_side("rollout", models()).generate(
        Workload(prompts=4, prompt_tokens=(2, 9), new_tokens=8, **settings)
    )
    side = open_side("trainer", models())
    scores = side.score(sampled, How(), None, (), tmp_path)
    assert (scores.logprob_N - sampled.logprob_N).abs().max() < 1e-4
    temperature = settings.get("temperature") or 1.0
    reading = Reading(temperature=temperature, top_p=settings.get("top_p", 1.0), top_k=settings.get("top_k", 0))
    assert (side.readings(sampled, (reading,))["logprob.0"] - scores.logprob_N).abs().max() < 1e-5
    plain = reference(models(), sampled, temperature)
    kept = bool(settings.get("top_k") or settings.get("top_p"))
    assert ((scores.logprob_N - plain).abs().max() > 1e-3) == kept, "renormalised exactly when something was cut"


def test_a_token_outside_the_kept_set_is_minus_infinity(
    data: RolloutData, models: Callable[..., Path], open_side: Callable[..., TransformersSide], tmp_path: Path
) -> None:
    from dataclasses import replace

    scores = open_side("trainer", models()).score(replace(data, top_k=1), How(), None, (), tmp_path)
    found = stats(data.logprob_N, scores.logprob_N, data.valid_N)
    assert found.nonfinite > 0
    assert not found.exact


def test_nan_weights_score_and_every_logprob_counts_as_nonfinite(
    data: RolloutData, models: Callable[..., Path], open_side: Callable[..., TransformersSide], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "nan"
    shutil.copytree(models(), folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    scores = open_side("trainer", folder).score(data, How(), None, (), tmp_path)
    assert stats(data.logprob_N, scores.logprob_N, data.valid_N).nonfinite == len(data.logprob_N)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_saves_checkpoint_names_that_load_to_the_same_bits(
    family: str, models: Callable[..., Path], open_side: Callable[..., TransformersSide], tmp_path: Path
) -> None:
    from safetensors import safe_open

    folder = models(family)
    side = open_side("trainer", folder)
    sampled = open_side("rollout", folder).generate(Workload(prompts=2, prompt_tokens=(3, 5), new_tokens=3))
    before = side.score(sampled, How(), None, (), tmp_path).logprob_N
    facts = side.step(sampled, Step(rollout="", rate=0.5, save=str(tmp_path / "new.safetensors")))
    assert facts["gradient_norm"] > 0
    after = side.score(sampled, How(), None, (), tmp_path).logprob_N
    assert differs(before, after).any()
    with safe_open(tmp_path / "new.safetensors", "pt") as new, safe_open(folder / "model.safetensors", "pt") as old:
        assert set(new.keys()) == set(old.keys())
        assert all(new.get_slice(name).get_shape() == old.get_slice(name).get_shape() for name in new.keys())  # noqa: SIM118
    reloaded = tmp_path / "reloaded"
    shutil.copytree(folder, reloaded)
    shutil.copy(tmp_path / "new.safetensors", reloaded / "model.safetensors")
    assert not differs(after, open_side("trainer", reloaded).score(sampled, How(), None, (), tmp_path).logprob_N).any()
    pushed = open_side("rollout", folder)
    pushed.push(tmp_path / "new.safetensors", 1, True)
    prefill = pushed.score(sampled, How(path="prefill"), None, (), tmp_path).logprob_N
    assert (prefill - after).abs().max() < 1e-5


def test_adamw_keeps_its_state_between_steps(
    data: RolloutData, models: Callable[..., Path], open_side: Callable[..., TransformersSide], tmp_path: Path
) -> None:
    side = open_side("trainer", models())
    for seed in (1, 2):
        side.step(data, Step(rollout="", rate=1e-3, save=str(tmp_path / "w.safetensors"), seed=seed, optimizer="adamw"))
    assert side._optimizer is not None
    assert {float(state["step"]) for state in side._optimizer.state.values()} == {2.0}


def opened(folder: Path) -> TransformersSide:
    from samebits.tools.sides.transformers.side import TransformersSide

    return TransformersSide.load(
        Open.model_validate({"role": "trainer", "config": {"dtype": "float32"}, "model": str(folder), "device": "cpu"})
    )


def test_an_absent_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        opened(tmp_path / "absent")


@pytest.mark.parametrize(
    ("remove", "said"), [("config.json", "config.json: missing"), ("model.safetensors", "no weights")]
)
def test_a_folder_that_misses_a_file_is_refused(
    remove: str, said: str, models: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(models(), folder)
    (folder / remove).unlink()
    with pytest.raises(UserError, match=said):
        opened(folder)


@pytest.mark.parametrize(
    ("keep", "said"), [(0.5, "tensors are cut off"), (0.0001, "header alone"), (0.0, "header alone")]
)
def test_a_truncated_weights_file_is_refused(
    keep: float, said: str, models: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(models(), folder)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(UserError, match=said):
        opened(folder)


def test_garbage_and_a_missing_shard_are_refused(models: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(models(), folder)
    (folder / "model.safetensors").write_bytes(b"\x10" + b"\0" * 7 + b"x" * 200)
    with pytest.raises(UserError, match="damaged"):
        check_model_folder(str(folder))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-1-of-2.safetensors"}}))
    with pytest.raises(UserError, match=r"model-1-of-2\.safetensors: missing"):
        check_model_folder(str(folder))


def test_weights_missing_for_some_parameters_are_never_random(models: Callable[..., Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    shutil.copytree(models(), folder)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"no weights for 1 parameters, first model.layers.1.mlp.down_proj.weight"):
        opened(folder)


@pytest.mark.parametrize("content", ["{", "[]", '{"model_type": "no-such-model"}'])
def test_a_config_that_means_nothing_is_refused(content: str, models: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(models(), folder)
    (folder / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"config.json|cannot load"):
        opened(folder)


def test_a_sequence_or_token_the_model_cannot_take_is_named(
    data: RolloutData, models: Callable[..., Path], open_side: Callable[..., TransformersSide], tmp_path: Path
) -> None:
    from dataclasses import replace

    side = open_side("trainer", models())
    long = [*data.sequences[:3], Sequence([1] * 200, data.sequences[3].sampled), *data.sequences[4:]]
    with pytest.raises(UserError, match="sequence 3 of the rollout: 206 tokens, the trainer side's model takes 128"):
        side.score(replace(data, sequences=long), How(), None, (), tmp_path)
    foreign = [Sequence([300], data.sequences[0].sampled), *data.sequences[1:]]
    with pytest.raises(UserError, match="token id 300"):
        side.score(replace(data, sequences=foreign), How(), None, (), tmp_path)
