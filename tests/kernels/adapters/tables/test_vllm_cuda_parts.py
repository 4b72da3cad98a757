"""Parts of the CUDA table "vllm" that need no GPU: its rotary table, and V1's logprob with its gradient."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.tables.rotary_table import rotary_table, vllm_table

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize(("base", "width"), [(1e6, 128), (10000.0, 64)])
def test_the_rotary_table_is_computed_as_vllm_does(base: float, width: int) -> None:
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase

    own: Any = SimpleNamespace(base=base, rotary_dim=width, max_position_embeddings=4096)
    own._compute_inv_freq = lambda given: RotaryEmbeddingBase._compute_inv_freq(own, given)
    theirs = RotaryEmbeddingBase._compute_cos_sin_cache(own)
    ours = vllm_table(base, width, 4096, torch.float32, "cpu")
    assert torch.equal(ours.view(torch.int32), theirs.view(torch.int32))
    other = rotary_table(base, width, 4096, torch.float32)
    assert not torch.equal(other.view(torch.int32), theirs.view(torch.int32)), "the control: float64 gives other bits"


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.7])
def test_the_logprob_of_v1_has_the_bits_and_the_gradient_of_log_softmax(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "0")
    from samebits.kernels.adapters.tables.vllm_logprob import logprob_v1

    torch.manual_seed(0)
    logits = (torch.randn(5, 300) * 3).bfloat16()
    token = torch.randint(0, 300, (5,))
    weight = torch.randn(5)
    mine, plain = (logits.clone().requires_grad_() for _ in range(2))
    divisor = torch.full((5, 1), temperature or 1.0)
    expected = (plain.float() / divisor).log_softmax(-1).gather(1, token[:, None])[:, 0]
    got = logprob_v1(mine, token, temperature)
    assert torch.equal(got, expected)
    (got * weight).sum().backward()
    (expected * weight).sum().backward()
    assert mine.grad is not None
    assert plain.grad is not None
    assert mine.grad.dtype == torch.bfloat16
    torch.testing.assert_close(mine.grad, plain.grad, atol=1e-3, rtol=1e-2)
    if temperature == 0.7:
        assert not torch.equal(logprob_v1(logits, token, 1.0), expected), "the control: the temperature is seen"


def test_a_head_size_at_which_the_engine_itself_varies_is_refused() -> None:
    from samebits.kernels.adapters.tables.vllm_shared import check_head_size

    with pytest.raises(PatchError, match=r"head size 64: .* other bits beside a longer one"):
        check_head_size(64, True)
    check_head_size(128, True)
    check_head_size(64, False)
