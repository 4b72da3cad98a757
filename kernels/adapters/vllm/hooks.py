"""Every place in vLLM that the adapter overrides, calls or reads. Checked before anything is put in place."""

from __future__ import annotations

import importlib

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.tables.vllm_hooks import Hooks, match

_LAYERS = "vllm.model_executor.layers"
COMMON: Hooks = {
    ("vllm.engine.arg_utils", "EngineArgs.create_engine_config"): ("self",),
    ("vllm.v1.worker.gpu_worker", "Worker.load_model"): ("self",),
    ("vllm.compilation.caching", "VllmSerializableFunction.__call__"): ("self",),
    (f"{_LAYERS}.layernorm", "RMSNorm.forward_native"): ("self", "x", "residual"),
    (f"{_LAYERS}.activation", "SiluAndMul.forward_native"): ("x",),
    (f"{_LAYERS}.rotary_embedding.base", "RotaryEmbedding.forward_native"): ("self", "positions", "query", "key"),
    (f"{_LAYERS}.linear", "UnquantizedLinearMethod.apply"): ("self", "layer", "x", "bias"),
    (f"{_LAYERS}.vocab_parallel_embedding", "UnquantizedEmbeddingMethod.apply"): ("self", "layer", "x", "bias"),
    (f"{_LAYERS}.vocab_parallel_embedding", "UnquantizedEmbeddingMethod.embedding"): ("self", "layer", "input_"),
    (f"{_LAYERS}.logits_processor", "LogitsProcessor._apply_head"): (
        "self",
        "lm_head",
        "hidden_states",
        "embedding_bias",
    ),
    (f"{_LAYERS}.logits_processor", "LogitsProcessor._get_logits"): (
        "self",
        "hidden_states",
        "lm_head",
        "embedding_bias",
    ),
    ("vllm.model_executor.models.qwen3", "Qwen3Attention.forward"): ("self", "positions", "hidden_states"),
    (f"{_LAYERS}.attention.attention", "Attention.forward"): ("self", "query", "key", "value", "output_shape"),
    (f"{_LAYERS}.attention.attention", "get_attention_context"): ("layer_name",),
    (f"{_LAYERS}.attention.attention", "unified_kv_cache_update"): ("key", "value", "layer_name"),
    (f"{_LAYERS}.attention.attention", "unified_attention_with_output"): (
        "query",
        "key",
        "value",
        "output",
        "layer_name",
    ),
    ("vllm.utils.torch_utils", "_encode_layer_name"): ("layer_name",),
    ("vllm.utils.torch_utils", "_resolve_layer_name"): ("layer_name",),
    ("vllm.v1.sample.sampler", "Sampler.compute_logprobs"): ("logits",),
    ("vllm.v1.sample.sampler", "Sampler.gather_logprobs"): ("logprobs", "num_logprobs", "token_ids"),
    ("vllm.v1.sample.sampler", "Sampler.gather_specific_token_logprobs"): (
        "self",
        "logprobs",
        "logprob_token_ids",
        "sampled",
    ),
    ("vllm.v1.outputs", "LogprobsTensors"): ("logprob_token_ids", "logprobs", "selected_token_ranks"),
}
_ATTENTION = (
    "self",
    "layer",
    "query",
    "key",
    "value",
    "kv_cache",
    "attn_metadata",
    "output",
    "output_scale",
    "output_block_scale",
)
CPU: Hooks = {
    ("vllm.v1.attention.backends.cpu_attn", "CPUAttentionBackendImpl.forward"): _ATTENTION,
    ("vllm.v1.attention.backends.cpu_attn", "CPUAttentionBackendImpl.do_kv_cache_update"): (
        "self",
        "layer",
        "key",
        "value",
        "kv_cache",
        "slot_mapping",
    ),
}
CUDA: Hooks = {
    ("vllm.v1.worker.gpu_worker", "Worker.compile_or_warm_up_model"): ("self",),
    ("vllm.v1.attention.backends.flash_attn", "FlashAttentionImpl.forward"): _ATTENTION,
    ("vllm.v1.attention.backends.flash_attn", "FlashAttentionImpl.do_kv_cache_update"): (
        "self",
        "layer",
        "key",
        "value",
        "kv_cache",
        "slot_mapping",
    ),
    ("vllm.v1.attention.backends.flash_attn", "FlashAttentionMetadataBuilder.build"): (
        "self",
        "common_prefix_len",
        "common_attn_metadata",
    ),
    ("vllm.v1.worker.gpu.sample.logprob", "compute_token_logprobs"): ("logits", "token_ids"),
    ("vllm.v1.worker.gpu.sample.sampler", "Sampler.__call__"): ("self", "logits", "input_batch"),
    ("vllm.v1.worker.gpu.sample.states", "SamplingStates.apply_temperature"): (
        "self",
        "logits",
        "expanded_idx_mapping",
        "idx_mapping_np",
    ),
}
METADATA = (
    "num_actual_tokens",
    "max_query_len",
    "query_start_loc",
    "max_seq_len",
    "seq_lens",
    "block_table",
    "causal",
)
"""Fields of the backend's metadata that attention reads."""


def check() -> None:
    """Compare with the installed vLLM.

    Raises:
        PatchError: the first hook that is missing or takes other parameters, by name.
    """
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        match({**COMMON, **CPU})
        _metadata("vllm.v1.attention.backends.cpu_attn", "CPUAttentionMetadata", METADATA)
    elif current_platform.is_cuda():
        match({**COMMON, **CUDA})
        _metadata("vllm.v1.attention.backends.flash_attn", "FlashAttentionMetadata", METADATA)
        _metadata("vllm.v1.attention.backend", "CommonAttentionMetadata", ("query_start_loc_cpu",))
    else:
        raise PatchError(
            f"vLLM's platform {type(current_platform).__name__}", "has no operators of samebits", "use CUDA or CPU"
        )


def _metadata(module: str, name: str, needed: tuple[str, ...]) -> None:
    fields = getattr(importlib.import_module(module), name).__dataclass_fields__
    for field in needed:
        if field not in fields:
            raise PatchError(
                f"{module}.{name}.{field}", "is not there", "install a vLLM version that samebits was run on"
            )
