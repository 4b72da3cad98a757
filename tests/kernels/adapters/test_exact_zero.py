"""vLLM's logprobs, bit for bit, from a trainer: one small model; the whole matrix is in test_exact_zero_matrix.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from samebits.kernels.adapters.transformers.engine import patch
from samebits.tools.schema.experiment import Workload
from samebits.tools.sides.transformers.tiny import write_tiny

pytestmark = pytest.mark.vllm
WORKLOAD = Workload(prompts=8, prompt_tokens=(3, 200), new_tokens=16)
TOKENS = 8 * 16


@pytest.fixture(scope="module")
def live(start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    return start(write_tiny(tmp_path_factory.mktemp("model") / "qwen3", "qwen3"), "bfloat16")


@pytest.fixture(scope="module")
def data(live: Any) -> Any:
    return live.rollout(WORKLOAD)


def test_every_sampled_token_has_the_engines_bits(live: Any, data: Any) -> None:
    assert data.logprob_N.numel() == TOKENS
    assert live.differing(data, live.load(), "vllm") == 0


def test_alone_packed_and_padded_rows_have_the_same_bits(
    live: Any, data: Any, packed: Any, count_differing: Callable[..., int]
) -> None:
    patched = patch(live.load(), "vllm")
    with torch.no_grad():
        alone = torch.cat([packed.of([sequence]).score(patched) for sequence in data.sequences])
        assert count_differing(alone, data.logprob_N) == 0
        length = max(len(sequence.tokens) for sequence in data.sequences)
        ids = torch.tensor([sequence.tokens + [0] * (length - len(sequence.tokens)) for sequence in data.sequences])
        mask = torch.tensor([[int(i < len(sequence.tokens)) for i in range(length)] for sequence in data.sequences])
        logits = patched.model(input_ids=ids, attention_mask=mask).logits
        rows = torch.cat([logits[i, list(sequence.scored)] for i, sequence in enumerate(data.sequences)])
        tokens = torch.tensor([token for sequence in data.sequences for token in sequence.sampled])
        assert count_differing(patched.logprob(rows, tokens), data.logprob_N) == 0


@pytest.mark.parametrize("role", ["norm", "rotary", "attention", "logprob"])
def test_one_role_turned_back_to_stock_is_seen(live: Any, data: Any, role: str) -> None:
    assert live.differing(data, live.load(), {"*": "vllm", role: "stock"}) > 0


def test_the_stock_model_differs(live: Any, data: Any) -> None:
    assert live.differing(data, live.load(), "stock") > TOKENS // 2


def test_another_temperature_is_exact(live: Any) -> None:
    data = live.rollout(WORKLOAD.model_copy(update={"temperature": 0.7}))
    assert data.temperature == 0.7
    assert live.differing(data, live.load(), "vllm") == 0


def test_updates_pushed_into_the_live_engine_stay_exact(
    live: Any, packed: Any, count_differing: Callable[..., int]
) -> None:
    patched = patch(live.load(), "vllm")
    optimizer = torch.optim.AdamW(patched.model.parameters(), lr=1e-3)
    before = live.rollout(WORKLOAD)
    for step in range(1, 3):
        logprob_M = packed.of(before.sequences).score(patched)
        assert bool(((logprob_M - before.logprob_N).exp() == 1).all())
        advantage_M = torch.randn(logprob_M.shape, generator=torch.Generator().manual_seed(step))
        (-(logprob_M * advantage_M).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            moved = packed.of(before.sequences).score(patched)
        assert count_differing(moved, before.logprob_N) > TOKENS // 2, "the update moved nothing"
        live.push(patched.model)
        before = live.rollout(WORKLOAD.model_copy(update={"seed": step}))
        with torch.no_grad():
            assert count_differing(packed.of(before.sequences).score(patched), before.logprob_N) == 0
