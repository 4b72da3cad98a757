"""A real vLLM engine on samebits' operators, and a trainer on the table "samebits": the same bits.

On CPU the operators are the contracts in plain PyTorch, so this holds the wiring; the kernels are held on a GPU by
benchmarks/rollout_exact.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from samebits.kernels.adapters.transformers.checkpoint import checkpoint_tensors
from samebits.kernels.adapters.transformers.engine import patch
from samebits.kernels.contract_version import CONTRACT_VERSION
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Experiment, Rollout, Workload
from samebits.tools.schema.passes import Generate, How, Push, Score
from samebits.tools.sides import rollout_store
from samebits.tools.sides.session import Session
from samebits.tools.sides.transformers.tiny import write_tiny

pytestmark = pytest.mark.vllm
SMALL = {"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 192, "vocab_size": 256}
WORK = Workload(prompts=8, prompt_tokens=(3, 150), new_tokens=6)


@contextmanager
def engine(work: Path, family: Any, *, eager: bool = True, **settings: Any) -> Iterator[tuple[Session, Path]]:
    sizes = settings.pop("sizes", {})
    folder = write_tiny(work / "model", family, **(SMALL | sizes))
    rollout = Rollout(model=str(folder), kernels="samebits", eager=eager, max_model_len=512, engine=settings)
    with Session.start("rollout", Experiment(device="cpu", rollout=rollout), "cpu", work) as session:
        yield session, folder


def generate(session: Session, work: Path, workload: Workload) -> Any:
    folder = work / f"rollout-{len(list(work.iterdir())):03}"
    session.ask(Generate(workload=workload, folder=str(folder)))
    return rollout_store.read(folder)


@pytest.fixture(scope="module", params=["qwen3_tied"])
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    work = tmp_path_factory.mktemp(request.param)
    # Greedy prompts are cut into chunks, in company of decoding rows; seeded ones cannot be cut on CPU.
    with engine(work, request.param, max_num_batched_tokens=160, max_num_seqs=8) as (session, folder):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        yield session, work, model


def scored(model: Any, data: Any, table: Any, packed: Any) -> torch.Tensor:
    patched = patch(model, table)
    with torch.no_grad():
        found: torch.Tensor = packed.of(data.sequences).score(patched, data.temperature)
    patched.undo()
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_every_sampled_token_has_the_same_bits_in_chunks_and_at_any_temperature(
    live: Any, packed: Any, count_differing: Callable[..., int], temperature: float
) -> None:
    session, work, model = live
    asked = WORK.model_copy(update={"temperature": temperature})
    data = generate(session, work, asked)
    assert count_differing(scored(model, data, "samebits", packed), data.logprob_N) == 0
    other = scored(model, data, {"*": "samebits", "norm": "stock"}, packed)
    assert count_differing(other, data.logprob_N) > 0, "a foreign norm was not seen: the check sees nothing"


def test_the_engine_gives_the_same_bits_on_every_path(live: Any, count_differing: Callable[..., int]) -> None:
    session, work, _ = live
    data = generate(session, work, WORK)
    source = sorted(work.glob("rollout-*"))[-1]
    ways = (How(concurrency=1), How(chunk=48), How(warm_prefix=True), How(path="prefill", stride=2))
    for place, how in enumerate(ways):
        folder = work / f"scores-{place}"
        folder.mkdir()
        session.ask(Score(rollout=str(source), how=how, folder=str(folder)))
        scores = rollout_store.read_scores(folder)
        found, asked = scores.logprob_N, scores.scored_N
        assert int(asked.sum()) >= data.logprob_N.numel() // 2
        assert count_differing(found[asked], data.logprob_N[asked]) == 0, how


def test_both_sides_are_equal_again_after_an_update(
    live: Any, packed: Any, count_differing: Callable[..., int], tmp_path: Path
) -> None:
    session, work, model = live
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.0 + 0.02 * torch.randn_like(parameter))
    save_file(checkpoint_tensors(model), tmp_path / "weights.safetensors")
    old = generate(session, work, WORK)
    session.ask(Push(weights=str(tmp_path / "weights.safetensors"), version=1))
    new = generate(session, work, WORK)
    assert count_differing(scored(model, old, "samebits", packed), old.logprob_N) > 0
    assert count_differing(scored(model, new, "samebits", packed), new.logprob_N) == 0


def test_the_side_lists_what_it_replaced_and_what_ran(live: Any) -> None:
    lines = "\n".join(live[0].opened.lines)
    for operator in ("embedding", "linear", "normed_rotary", "attention", "rms_norm", "silu_mul"):
        assert f"-> samebits::{operator}" in lines
    assert "log_softmax -> samebits::logprob" in lines
    assert "its keys and values written by samebits::normed_rotary" in lines
    assert f"contract {CONTRACT_VERSION}" in lines


@pytest.mark.parametrize(
    ("family", "sizes", "word"),
    [("qwen3_moe", {}, "mixture of experts"), ("qwen3", {"head_dim": 32}, "head size 32")],
)
def test_a_model_that_is_not_covered_does_not_start(
    tmp_path: Path, family: str, sizes: dict[str, int], word: str
) -> None:
    with pytest.raises(UserError, match=word), engine(tmp_path, family, sizes=sizes):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_the_engine_as_it_runs_by_default_compiles_around_the_operators(
    tmp_path: Path, family: str, packed: Any, count_differing: Callable[..., int]
) -> None:
    with engine(tmp_path, family, eager=False) as (session, folder):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        data = generate(session, tmp_path, WORK)
        assert count_differing(scored(model, data, "samebits", packed), data.logprob_N) == 0
        assert session.opened.facts["compiled"] not in ("", "NONE", "0")
        assert "none" in str(session.opened.facts["custom_ops"])
