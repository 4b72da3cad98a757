"""What is compiled while an engine comes up covers what its batches can need."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from samebits.kernels.adapters.vllm import warm
from samebits.kernels.ops.attention.dispatch import decode_form
from samebits.kernels.ops.linear import dispatch
from samebits.kernels.ops.linear.op import direct, linear_float32
from samebits.kernels.ops.ran import counts

H200 = 132


def missing(warmed: list[tuple[int, int]], key_heads: int, most: int, longest: int) -> list[tuple[int, int]]:
    """Batches (sequences, keys) that need a form of decode or merge that none of `warmed` has."""

    def form(batch: int, length: int) -> tuple[bool, int, int]:
        splits, stages, steps = decode_form(batch, key_heads, -(-length // 512), H200)
        return splits == 1, stages, 0 if splits == 1 else steps

    known = {form(*shape) for shape in warmed}
    lengths = [1, 512, 513, 1500, 4096, 4097, 9000, 32768]
    return [
        (batch, length)
        for batch in range(1, most + 1)
        for length in lengths
        if length <= longest and form(batch, length) not in known
    ]


def test_every_form_of_decode_is_compiled_and_leaving_one_out_is_seen() -> None:
    for key_heads, most, longest in ((8, 256, 32768), (1, 512, 2048), (8, 1, 4096), (4, 40, 600)):
        warmed = warm.shapes(key_heads, most, longest, H200)
        assert len(warmed) <= 6, "one form twice"
        assert not missing(warmed, key_heads, most, longest)
        assert all(1 <= batch <= most and 1 <= length <= longest for batch, length in warmed)
        assert missing(warmed[1:], key_heads, most, longest), "the check sees nothing"


@pytest.mark.parametrize(
    ("product", "name"), [(direct, "linear contract"), (linear_float32, "linear float32 contract")]
)
def test_lm_head_runs_for_every_number_of_sampled_rows_and_logprob_for_both_dtypes(product: Any, name: str) -> None:
    before = counts()
    warm.sampled(torch.randn(64, 16).bfloat16(), 5, product)
    after = counts()
    assert after[name] - before.get(name, 0) == 5
    assert after["logprob"] - before.get("logprob", 0) == 2


class Layer(torch.nn.Linear):
    """A linear as vLLM has it: its product belongs to a method of its own."""

    quant_method = None


def test_products_over_a_long_k_run_for_every_row_of_the_table_once_per_form() -> None:
    model = torch.nn.Sequential(
        Layer(8448, 8, bias=False), Layer(8448, 8, bias=False), Layer(8448, 8), Layer(64, 8), torch.nn.Linear(8448, 8)
    )
    found = list(warm.long_weights(model))
    assert [(weight.shape, bias is None) for weight, bias in found] == [((8, 8448), True), ((8, 8448), False)]
    before = counts().get("linear contract", 0)
    with torch.inference_mode():
        warm.multiplied(*found[0], 20)
    assert counts()["linear contract"] - before == len(dispatch.sizes(8, 8448, 20)) > 1


def test_sizes_need_every_row_of_the_table_that_a_batch_can() -> None:
    for N, K in ((512, 12288), (4096, 14336), (2048, 11008)):
        for most in (1, 20, 256, 8192):
            wanted = {dispatch.choose(M, N, K, torch.float16, True, False, 0) for M in range(1, most + 1)}
            warmed = {dispatch.choose(M, N, K, torch.float16, True, False, 0) for M in dispatch.sizes(N, K, most)}
            assert warmed == wanted


def test_normed_rotary_into_the_cache_is_warmed_in_every_form_and_leaves_the_cache_as_it_is() -> None:
    from samebits.kernels.ops.normed_rotary.triton import blocking

    assert {blocking(tokens) for tokens in warm.FORMS} == {blocking(tokens) for tokens in range(1, 8193)}
    norm = SimpleNamespace(weight=torch.nn.Parameter(torch.ones(64).bfloat16()), variance_epsilon=1e-6)
    owner = SimpleNamespace(q_size=256, kv_size=128, head_dim=64, q_norm=norm, k_norm=norm)
    owner.rotary_emb = SimpleNamespace(cos_sin_cache=torch.ones(4, 64))
    keys, values = torch.full((2, 16, 2, 128), 7.0).bfloat16().split(64, -1)
    before = counts()
    with torch.inference_mode():
        warm.written(owner, keys, values)
    assert counts()["normed_rotary into pages"] - before.get("normed_rotary into pages", 0) == len(warm.FORMS)
    assert bool((keys == 7).all() & (values == 7).all())
