"""The hook table, the layers and the samplers, without an engine."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.ops.logprob.op import logprob
from samebits.kernels.ops.ran import counts

pytestmark = pytest.mark.vllm


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.int32)


def test_every_hook_is_there_and_a_moved_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from samebits.kernels.adapters.vllm import hooks

    hooks.check()
    place = ("vllm.v1.sample.sampler", "Sampler.gather_logprobs")
    monkeypatch.setitem(hooks.COMMON, place, ("logits", "count"))
    with pytest.raises(PatchError, match=r"Sampler.gather_logprobs: takes \(logprobs, num_logprobs\)"):
        hooks.check()
    monkeypatch.setitem(hooks.COMMON, place, hooks.COMMON[place])
    monkeypatch.setattr(hooks, "COMMON", {("vllm.v1.sample.sampler", "Sampler.gone"): ()})
    with pytest.raises(PatchError, match=r"Sampler.gone: is not there"):
        hooks.check()
    monkeypatch.setattr(hooks, "COMMON", {})
    monkeypatch.setattr(hooks, "METADATA", ("query_start_loc", "gone"))
    with pytest.raises(PatchError, match=r"CPUAttentionMetadata.gone"):
        hooks.check()


def test_a_layer_registered_with_vllm_would_not_run_where_a_turned_one_does() -> None:
    """vLLM compiles with custom ops off, so an out-of-tree class runs its parent's forward_native."""
    from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.custom_op import CustomOp, op_registry_oot
    from vllm.model_executor.layers.layernorm import RMSNorm

    from samebits.kernels.adapters.vllm.layers import SamebitsRMSNorm

    config = VllmConfig(compilation_config=CompilationConfig(custom_ops=["none"]))
    with set_current_vllm_config(config):

        class Registered(RMSNorm):
            def forward_cpu(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
                raise AssertionError("never called")

        CustomOp.register_oot(Registered, name="RMSNorm")
        try:
            trap: Any = RMSNorm(64)
        finally:
            del op_registry_oot["RMSNorm"]
        ours: Any = RMSNorm(64)
    assert type(trap) is Registered
    x = torch.randn(3, 64)
    before = counts().get("rms_norm", 0)
    trap(x)
    ours(x)
    assert counts().get("rms_norm", 0) == before
    ours.__class__ = SamebitsRMSNorm
    ours(x)
    assert counts()["rms_norm"] == before + 1


def test_columns_of_logprobs_are_those_of_the_operator_whatever_the_dtype_of_the_logits() -> None:
    from samebits.kernels.adapters.vllm.sampling import token_logprobs

    logits = (torch.randn(5, 300) * 4).bfloat16()
    ids = torch.randint(0, 300, (5, 3))
    found = token_logprobs(logits, ids)
    assert found.shape == (5, 3)
    for column in range(3):
        assert torch.equal(bits(found[:, column]), bits(logprob(logits.float(), ids[:, column])))


def test_a_temperature_is_divided_as_the_operator_divides_it() -> None:
    from samebits.kernels.adapters.vllm.sampling import divide, token_logprobs

    logits, ids = (torch.randn(4, 300) * 4).bfloat16(), torch.randint(0, 300, (4, 1))
    given = torch.tensor([0.7, 0.0, 1.0, 1.3])
    states = SimpleNamespace(temperature=SimpleNamespace(np=given.numpy(), gpu=given))
    scaled = logits.float()
    divide(states, scaled, torch.arange(4), torch.arange(4).numpy())
    plain = torch.where(given == 0, 1.0, given)
    assert torch.equal(bits(token_logprobs(scaled, ids)[:, 0]), bits(logprob(logits, ids[:, 0], plain)))


def test_a_cache_of_another_shape_is_refused_and_strides_are_taken_as_they_are() -> None:
    from samebits.kernels.adapters.vllm.attention import split

    packed = torch.arange(2 * 4 * 3 * 16).view(2, 4, 3, 16)  # pages, slots, heads, keys before values
    keys, values = split(packed.permute(0, 2, 1, 3), 8)
    assert keys.data_ptr() == packed.data_ptr(), "a copy of the cache"
    assert torch.equal(keys, packed[..., :8])
    assert torch.equal(values, packed[..., 8:])
    with pytest.raises(PatchError, match=r"KV cache of shape \(2, 2, 4, 3, 8\)"):
        split(torch.zeros(2, 2, 4, 3, 8), 8)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size = 2"),
        ({"cache_dtype": "fp8"}, "kv_cache_dtype = 'fp8'"),
        ({"lora_config": "some"}, "lora_config"),
        ({"speculative_config": "some"}, "speculative_config"),
        ({"head_dtype": torch.float16}, "head_dtype"),
        ({"dtype": torch.float64, "head_dtype": torch.float64}, "dtype float64"),
        ({"device": "cuda", "dtype": torch.float32, "head_dtype": torch.float32}, "dtype float32"),
        ({"device": "tpu"}, "device tpu"),
        ({"is_moe": True}, "mixture of experts"),
        ({"additional_config": {}}, "samebits_kernels"),
    ],
)
def test_settings_that_are_not_covered_are_refused_before_the_model_is_loaded(
    change: dict[str, Any], word: str
) -> None:
    from samebits.kernels.adapters.vllm import switch
    from samebits.kernels.adapters.vllm.install import check

    held: dict[str, Any] = {
        "tensor_parallel_size": 1,
        "cache_dtype": "auto",
        "lora_config": None,
        "speculative_config": None,
        "head_dtype": torch.bfloat16,
        "dtype": torch.bfloat16,
        "device": "cpu",
        "is_moe": False,
        "additional_config": switch.with_key({}),
    }

    def config(values: dict[str, Any]) -> Any:
        return SimpleNamespace(
            additional_config=values["additional_config"],
            parallel_config=SimpleNamespace(
                tensor_parallel_size=values["tensor_parallel_size"], pipeline_parallel_size=1
            ),
            cache_config=SimpleNamespace(cache_dtype=values["cache_dtype"]),
            model_config=SimpleNamespace(**{name: values[name] for name in ("dtype", "head_dtype", "is_moe")}),
            quant_config=None,
            speculative_config=values["speculative_config"],
            lora_config=values["lora_config"],
            device_config=SimpleNamespace(device_type=values["device"]),
        )

    check(config(held))
    check(config(held | {"dtype": torch.float32, "head_dtype": torch.float32}))
    with pytest.raises(PatchError, match=word):
        check(config(held | change))


def test_kernels_of_replaced_operators_are_told_from_those_that_stay() -> None:
    from samebits.kernels.adapters.vllm.read_back import foreign

    stay = ("rms_norm_kernel", "void vllm::reshape_and_cache_flash_kernel<x>")
    gone = (
        "void flash::prepare_varlen_num_blocks",
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<x>>>",
        "void vllm::rms_norm_kernel<c10::BFloat16>",
        "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_1",
        "triton_poi_fused__to_copy_mul_silu_slice_2",
        "_topk_log_softmax_kernel",
    )
    assert foreign(dict.fromkeys((*stay, *gone), (1, 1.0))) == sorted(gone)


def test_a_float32_head_is_taken_by_the_logits_processor_of_an_engine_that_asks_for_it() -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    from samebits.kernels.adapters.vllm.install import _logits
    from samebits.kernels.ops.linear.op import linear, linear_float32

    with set_current_vllm_config(VllmConfig()):
        module: Any = LogitsProcessor(9)
    assert _logits("logits_processor", module) == []
    module.head_dtype = torch.float32
    (change,) = _logits("logits_processor", module)
    change.put()
    x, weight = torch.randn(3, 16).bfloat16(), torch.randn(9, 16).bfloat16()
    found = module._apply_head(SimpleNamespace(weight=weight), x, None)
    assert torch.equal(bits(found), bits(linear_float32(x, weight)))
    assert torch.equal(found.bfloat16(), linear(x, weight))


def test_the_shortest_query_of_a_pass_is_noted_once_and_empty_ones_do_not_count() -> None:
    from samebits.kernels.adapters.vllm.attention import NO_QUERY, SHORTEST, note_shortest

    def noted(starts: list[int]) -> int:
        lengths = [end - start for start, end in pairwise(starts)]
        begins = torch.tensor(starts, dtype=torch.int32)
        common = SimpleNamespace(query_start_loc_cpu=begins, max_query_len=max(lengths))
        found: int = getattr(note_shortest(SimpleNamespace(), common), SHORTEST)
        return found

    assert noted([0, 5, 7, 20]) == 2
    assert noted([0, 5, 7, 7, 7]) == 2, "padding has no query"
    assert noted([0, 1, 2, 2]) == 1
    assert noted([0, 0]) == NO_QUERY


def test_flash_attentions_own_schedule_is_not_made_for_a_pass_that_nobody_reads_it_in() -> None:
    # The builder runs on CUDA alone; this is the wrapper with one that says what it would do.
    from samebits.kernels.adapters.vllm.plugin import _prepares_a_pass

    def build(builder: SimpleNamespace, prefix: int, common: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(scheduled=builder.aot_schedule)

    builder, common = SimpleNamespace(aot_schedule=True), SimpleNamespace(max_query_len=1)
    assert build(builder, 0, common).scheduled
    assert not _prepares_a_pass(build)(builder, 0, common).scheduled
