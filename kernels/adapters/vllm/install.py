"""From a loaded vLLM model to one that runs on samebits' operators: all of it is known first, then all is replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.tables import limits
from samebits.kernels.adapters.tables.rotary_table import rotary_table
from samebits.kernels.adapters.vllm import switch
from samebits.kernels.ops.attention.layout import uncovered

HELD = "samebits_kernels"
"""Attribute of the worker that holds what was replaced."""
CONTAINERS = (
    "Qwen3ForCausalLM",
    "Qwen3Model",
    "Qwen3DecoderLayer",
    "Qwen2MLP",
    "LlamaForCausalLM",
    "LlamaModel",
    "LlamaDecoderLayer",
    "LlamaAttention",
    "LlamaMLP",
    "ModuleList",
)
"""Classes whose forward only calls their children (and views)."""
MODELS = ("Qwen3ForCausalLM", "LlamaForCausalLM")
UNUSED = ("ApplyRotaryEmb",)
"""Children of replaced modules that are not called any more."""


@dataclass(slots=True, frozen=True)
class Change:
    """One module, what it will run, and how to make it so."""

    path: str
    stood: str
    operator: str
    put: Callable[[], None]

    def __str__(self) -> str:
        return f"{self.path}: {self.stood} -> {self.operator}"


def check(config: Any) -> None:
    """Settings of the engine, before its model is loaded.

    Raises:
        PatchError: the first that the operators do not cover.
    """
    switch.check_key(config.additional_config)
    parallel, cache = config.parallel_config, config.cache_config
    asked: list[tuple[str, Any, tuple[Any, ...]]] = [
        ("tensor_parallel_size", parallel.tensor_parallel_size, (1,)),
        ("pipeline_parallel_size", parallel.pipeline_parallel_size, (1,)),
        ("decode_context_parallel_size", getattr(parallel, "decode_context_parallel_size", 1), (1,)),
        ("kv_cache_dtype", cache.cache_dtype, ("auto", str(config.model_config.dtype).removeprefix("torch."))),
        ("quantization", config.quant_config, (None,)),
        ("speculative_config", config.speculative_config, (None,)),
        ("lora_config", config.lora_config, (None,)),
    ]
    for name, found, known in asked:
        if found not in known:
            raise PatchError(f"{name} = {found!r}", "is not covered by samebits' operators", f"use {known[0]!r}")
    dtype = config.model_config.dtype
    limits.check(switch.TABLE, config.device_config.device_type, dtype, experts=config.model_config.is_moe)
    head = getattr(config.model_config, "head_dtype", dtype)
    if head not in (dtype, torch.float32):
        raise PatchError(f"head_dtype = {head}", "is not covered by samebits' operators", f"use {dtype} or float32")


def install(worker: Any) -> None:
    """Replace the operators of the worker's model and sampler.

    Raises:
        PatchError: a module of the model is not covered; nothing is replaced then.
    """
    from samebits.kernels.adapters.vllm import sampling

    changes = plan(worker.model_runner.get_model())
    sampler = sampling.put(worker.model_runner)
    for change in changes:
        change.put()
    setattr(worker, HELD, (*map(str, changes), f"sampler: {sampler}"))


def plan(model: torch.nn.Module) -> list[Change]:
    """What every module of the model will run.

    Raises:
        PatchError: the first module that is not covered, by path.
    """
    if type(model).__name__ not in MODELS:
        raise PatchError(
            f"model class {type(model).__name__}",
            "is not covered by samebits' operators",
            f"known: {', '.join(MODELS)}",
        )
    changes = []
    for path, module in model.named_modules():
        name = type(module).__name__
        if name in CONTAINERS or name in UNUSED:
            continue
        maker = _makers().get(name)
        if maker is None:
            raise PatchError(
                f"module {path} ({name})",
                "is not covered by samebits' operators",
                'use kernels = "none", or a model made of the layers in docs/kernels-in-vllm.md',
            )
        changes += maker(path, module)
    return changes


def _makers() -> dict[str, Callable[[str, Any], list[Change]]]:
    linears = ("QKVParallelLinear", "MergedColumnParallelLinear", "RowParallelLinear")
    return {
        "RMSNorm": _norm,
        "SiluAndMul": _activation,
        "RotaryEmbedding": _rotary,
        "VocabParallelEmbedding": _embedding,
        "ParallelLMHead": _embedding,
        "LogitsProcessor": _logits,
        "Attention": _attention,
        "Qwen3Attention": _qwen3_attention,
    } | dict.fromkeys(linears, _linear)


def _turn(path: str, module: Any, into: type, operator: str) -> Change:
    def put() -> None:
        module.__class__ = into

    return Change(path, type(module).__name__, operator, put)


def _only(path: str, **found: tuple[Any, Any]) -> None:
    """Each (found, expected) pair is equal."""
    for name, (value, expected) in found.items():
        if value != expected:
            raise PatchError(
                f"module {path}: {name} = {value!r}",
                f"is not covered by samebits' operators, only {expected!r}",
                'use kernels = "none" for this model',
            )


def _norm(path: str, module: Any) -> list[Change]:
    from samebits.kernels.adapters.vllm.layers import SamebitsRMSNorm

    _only(path, has_weight=(module.has_weight, True), var_hidden_size=(module.variance_size_override, None))
    return [_turn(path, module, SamebitsRMSNorm, "samebits::rms_norm")]


def _activation(path: str, module: Any) -> list[Change]:
    from samebits.kernels.adapters.vllm.layers import SamebitsSiluAndMul

    return [_turn(path, module, SamebitsSiluAndMul, "samebits::silu_mul")]


def _rotary(path: str, module: Any) -> list[Change]:
    from samebits.kernels.adapters.vllm.layers import SamebitsRotaryEmbedding

    _only(path, is_neox_style=(module.is_neox_style, True), rotary_dim=(module.rotary_dim, module.head_size))
    old = module.cos_sin_cache
    table = rotary_table(module.base, module.rotary_dim, old.shape[0], module.dtype, old.device)

    def put() -> None:
        module.cos_sin_cache = table
        module.__class__ = SamebitsRotaryEmbedding

    return [Change(path, type(module).__name__, "samebits::rotary on samebits' table", put)]


def _linear(path: str, module: Any) -> list[Change]:
    from samebits.kernels.adapters.vllm.layers import SamebitsLinearMethod

    return _method(path, module, "UnquantizedLinearMethod", SamebitsLinearMethod, "samebits::linear")


def _embedding(path: str, module: Any) -> list[Change]:
    from samebits.kernels.adapters.vllm.layers import SamebitsEmbeddingMethod

    head = type(module).__name__ == "ParallelLMHead"
    name = "samebits::linear" if head else "samebits::embedding"
    return _method(path, module, "UnquantizedEmbeddingMethod", SamebitsEmbeddingMethod, name)


def _method(path: str, module: Any, stands: str, into: type, operator: str) -> list[Change]:
    method = type(module.quant_method).__name__
    _only(path, quant_method=(method, stands), tp_size=(module.tp_size, 1))
    if not module.weight.is_contiguous() or module.weight.dim() != 2 or not module.weight.numel():
        raise PatchError(f"module {path}", "has no plain weight", 'use kernels = "none" for this model')

    def put() -> None:
        module.quant_method = into()

    return [Change(path, f"{type(module).__name__} ({method})", operator, put)]


def _logits(path: str, module: Any) -> list[Change]:
    from samebits.kernels.adapters.vllm.layers import SamebitsLogitsProcessor

    _only(path, scale=(module.scale, 1.0), soft_cap=(module.soft_cap, None))
    if module.head_dtype != torch.float32:
        return []
    return [_turn(path, module, SamebitsLogitsProcessor, "samebits::linear_float32")]


def _attention(path: str, module: Any) -> list[Change]:
    from samebits.kernels.adapters.vllm.attention import implementations

    impl = module.impl
    into = implementations().get(type(impl))
    if into is None:
        raise PatchError(
            f"module {path}: attention by {type(impl).__name__}",
            "is not covered by samebits' operators",
            "use the backend FLASH_ATTN (VLLM_ATTENTION_BACKEND, attention_backend)",
        )
    _only(
        path,
        attn_type=(impl.attn_type, "decoder"),
        sliding_window=(impl.sliding_window in ((-1, -1), -1, None), True),
        alibi_slopes=(impl.alibi_slopes, None),
        logits_soft_cap=(impl.logits_soft_cap or 0, 0),
        kv_sharing=(impl.kv_sharing_target_layer_name, None),
        sinks=(impl.sinks, None),
        query_quant=(module.query_quant, None),
    )
    if why := uncovered(impl.head_size, impl.num_heads, impl.num_kv_heads):
        raise PatchError(f"module {path}: attention", why, 'use kernels = "none" for this model')
    change = _turn(path, impl, into, "samebits::attention")
    return [Change(path, f"Attention ({type(impl).__name__})", change.operator, change.put)]


def _qwen3_attention(path: str, module: Any) -> list[Change]:
    from samebits.kernels.adapters.vllm.layers import SamebitsQwen3Attention
    from samebits.kernels.adapters.vllm.written import SamebitsWrittenAttention

    eps, attn = module.q_norm.variance_epsilon, module.attn
    _only(path, dual_chunk_attention_config=(module.dual_chunk_attention_config, None))
    _only(f"{path}.k_norm", eps=(module.k_norm.variance_epsilon, eps))
    _only(
        f"{path}.attn",
        type=(type(attn).__name__, "Attention"),
        use_direct_call=(attn.use_direct_call, False),
        calculate_kv_scales=(getattr(attn, "calculate_kv_scales", False), False),
        forward_includes_kv_cache_update=(attn.attn_backend.forward_includes_kv_cache_update, False),
    )
    return [
        _turn(path, module, SamebitsQwen3Attention, "samebits::normed_rotary (norms of q and k, rotation)"),
        _turn(f"{path}.attn", attn, SamebitsWrittenAttention, "its keys and values written by samebits::normed_rotary"),
    ]
