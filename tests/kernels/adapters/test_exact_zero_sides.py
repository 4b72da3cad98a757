"""Both sides as samebits runs them: two processes without AMX, `kernels = "vllm"`, updates pushed across."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from samebits.kernels.adapters.setup import cpu_pieces
from samebits.tools.schema.experiment import Experiment, Rollout, Trainer, Workload
from samebits.tools.schema.passes import Generate, How, Push, Score, Step
from samebits.tools.sides import rollout_store
from samebits.tools.sides.session import Session
from samebits.tools.sides.transformers.tiny import write_tiny

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
WORKLOAD = Workload(prompts=32, prompt_tokens=(3, 200), new_tokens=32)
TOKENS = 32 * 32
STEPS = 2


@contextmanager
def opened(
    model: Path,
    work: Path,
    *,
    split: str = "0",
    threads: str = "1",
    pieces: str = "1",
    longest: int = 512,
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
    **engine: int,
) -> Iterator[tuple[Session, Session, Path]]:
    env = {"VLLM_CPU_ATTN_SPLIT_KV": split, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", cpu_pieces.VARIABLE: pieces}
    experiment = Experiment(
        device="cpu",
        rollout=Rollout(
            model=str(model),
            dtype=dtype,
            eager=True,
            max_model_len=longest,
            env=env | {"OMP_NUM_THREADS": threads},
            engine={"max_num_batched_tokens": 8192, **engine},
        ),
        trainer=Trainer(dtype=dtype, kernels="vllm", layout="packed", micro_batch=8, env=env),
    )
    with (
        Session.start("rollout", experiment, "cpu", work) as rollout,
        Session.start("trainer", experiment, "cpu", work) as trainer,
    ):
        yield rollout, trainer, work


@pytest.fixture(scope="module", params=["qwen3", "qwen3_moe"])
def sides(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    work = tmp_path_factory.mktemp(request.param)
    with opened(write_tiny(work / "model", request.param), work) as both:
        yield both


def differing(side: Session, rollout: Path, work: Path, how: How, *, tokens: int = TOKENS) -> int:
    folder = work / f"scores-{len(list(work.iterdir()))}"
    folder.mkdir()
    side.ask(Score(rollout=str(rollout), how=how, folder=str(folder)))
    ours, theirs = rollout_store.read_scores(folder).logprob_N, rollout_store.read(rollout).logprob_N
    assert ours.numel() == theirs.numel() == tokens
    return int((ours.view(torch.int32) != theirs.view(torch.int32)).sum())


def test_the_trainers_opening_lists_what_was_replaced(sides: Any) -> None:
    assert sum("model.layers." in line and "vllm" in line for line in sides[1].opened.lines) >= 4 * 10


def test_both_sides_agree_before_and_after_updates_and_at_a_batch_of_one(sides: Any) -> None:
    rollout, trainer, work = sides
    for version in range(STEPS + 1):
        data = work / f"rollout-{version}"
        rollout.ask(Generate(workload=WORKLOAD.model_copy(update={"seed": version}), folder=str(data)))
        assert differing(trainer, data, work, How()) == 0
        assert differing(rollout, data, work, How(concurrency=1)) == 0
        if version < STEPS:
            weights = work / f"weights-{version}.safetensors"
            trainer.ask(Step(rollout=str(data), rate=1e-3, save=str(weights), seed=version, optimizer="adamw"))
            assert differing(trainer, data, work, How()) > TOKENS // 2, "the update moved nothing"
            rollout.ask(Push(weights=str(weights), version=version + 1))


def test_an_engine_that_splits_the_kv_cache_differs_at_a_batch_of_one(tmp_path: Path) -> None:
    # The engine splits the cache among its threads: with one thread there is nothing to split.
    model = write_tiny(tmp_path / "model", "qwen3")
    with opened(model, tmp_path, split="1", threads="2", max_num_seqs=1) as (rollout, trainer, work):
        long = Workload(prompts=6, prompt_tokens=(120, 200), new_tokens=16)
        rollout.ask(Generate(workload=long, folder=str(work / "rollout")))
        assert 0 < differing(trainer, work / "rollout", work, How(), tokens=6 * 16) < 6 * 16


@pytest.mark.parametrize("pieces", ["1", "0"])
def test_behind_one_tile_of_keys_both_sides_agree_in_pieces_alone(tmp_path: Path, pieces: str) -> None:
    keys = cpu_pieces.keys_of_a_prefill("vec", 128, 4, int(torch.cpu.get_capabilities()["l2_cache_size"]))
    assert keys is not None
    model = write_tiny(tmp_path / "model", "qwen3", "float32", head_dim=128, max_position_embeddings=2 * keys)
    with opened(model, tmp_path, pieces=pieces, longest=2 * keys, dtype="float32") as (rollout, trainer, work):
        assert rollout.opened is not None
        told = any(f"behind {keys} tokens" in line for line in rollout.opened.lines)
        assert (told, rollout.opened.facts["attention_pieces"]) == (pieces == "0", pieces == "1")
        long = Workload(prompts=4, prompt_tokens=(3 * keys // 2, 3 * keys // 2 + 9), new_tokens=16)
        rollout.ask(Generate(workload=long, folder=str(work / "rollout")))
        moved = differing(trainer, work / "rollout", work, How(), tokens=4 * 16)
        again = differing(rollout, work / "rollout", work, How(path="prefill"), tokens=4 * 16)
        assert (moved == 0, again == 0) == (pieces == "1", pieces == "1")
