"""The two reload defects of vLLM on CPU are found by reading the weights back, left or worked round as asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from samebits.tools.schema.experiment import Workload
from samebits.tools.schema.passes import Generate, Push, Score
from samebits.tools.sides import rollout_store
from samebits.tools.sides.vllm.push import read_state

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samebits.tools.sides.session import Session

pytestmark = pytest.mark.vllm


def moved(source: Path, target: Path, seed: int) -> Path:
    generator = torch.Generator().manual_seed(seed)
    state = read_state(source)
    for tensor in state.values():
        tensor += (torch.randn(tensor.shape, generator=generator) * 0.05 * tensor.float().abs().mean()).to(tensor.dtype)
    save_file(state, target)
    return target


@pytest.mark.parametrize(
    ("family", "defect", "weights", "affected"),
    [pytest.param("qwen3_tied", "tied head", 47, 1, marks=pytest.mark.slow), ("qwen3_moe", "experts", 47, 8)],
    ids=["tied head", "experts"],
)
def test_a_reload_defect_is_found_left_and_worked_round(
    start: Callable[..., Session], place: Path, family: Any, defect: str, weights: int, affected: int
) -> None:
    engine = start(family)
    folder = place / family
    folder.mkdir()
    engine.ask(
        Generate(workload=Workload(prompts=4, prompt_tokens=(5, 40), new_tokens=6), folder=str(folder / "rollout"))
    )
    data = rollout_store.read(folder / "rollout")

    def scores(name: str) -> torch.Tensor:
        engine.ask(Score(rollout=str(folder / "rollout"), folder=str(folder / name)))
        return rollout_store.read_scores(folder / name).logprob_N

    new = str(moved(place / f"model-{family}", folder / "new.safetensors", 1))
    left = engine.ask(Push(weights=new, version=1, repair=False)).lines
    assert defect in left[1]
    assert left[1].endswith("left as it is")
    assert left[-1].startswith(f"{weights - affected} of {weights} weights read back equal")
    stale = scores("stale")
    repaired = engine.ask(Push(weights=new, version=1)).lines
    assert defect in repaired[1]
    assert repaired[1].endswith("worked round")
    assert repaired[-1].startswith(f"{weights} of {weights} weights read back equal")
    fresh = scores("fresh")
    assert not torch.equal(stale, fresh), "the defect moves the logprobs"
    engine.ask(Push(weights=str(place / f"model-{family}"), version=2))
    assert torch.equal(scores("back").view(torch.int32), data.logprob_N.view(torch.int32))
    engine.stop()
