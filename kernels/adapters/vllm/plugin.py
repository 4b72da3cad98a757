"""Puts the operators under a worker's model once it has its weights and is not yet compiled.

Called from the `vllm.general_plugins` entry point of samebits in every vLLM process; does nothing unless the
environment asks for it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

from samebits.kernels.adapters.vllm import switch

MARK = "_samebits_kernels"
REQUEST = "SAMEBITS_REQUEST"
"""Set in engines that the command line opens itself: they are what one finds out with, and compare with no lock."""


def register() -> None:
    """Wrap the making of the engine's config, `Worker.load_model` and, on CUDA, the worker's warm-up, where the
    environment asks for the operators.

    May be called more than once.

    Raises:
        PatchError: an unknown table, or a hook that this vLLM does not have.
    """
    if not switch.asked():
        return
    from samebits.kernels.adapters.vllm import hooks

    hooks.check()
    from vllm.compilation.caching import VllmSerializableFunction
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu_worker import Worker

    if current_platform.is_cpu():
        _keep_weights()
    _wrap(EngineArgs, "create_engine_config", _names_the_operators)
    _wrap(Worker, "load_model", _replaces_the_operators)
    _wrap(VllmSerializableFunction, "__call__", _asks_no_class)
    if current_platform.is_cuda():
        from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadataBuilder

        _wrap(Worker, "compile_or_warm_up_model", _warms_the_operators)
        _wrap(FlashAttentionMetadataBuilder, "build", _prepares_a_pass)


def _wrap(owner: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    method = getattr(owner, name)
    if not getattr(method, MARK, False):
        wrapper = functools.wraps(method)(make(method))
        setattr(wrapper, MARK, True)
        setattr(owner, name, wrapper)


def _names_the_operators(method: Callable[..., Any]) -> Callable[..., Any]:
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.additional_config = switch.with_key(self.additional_config)
        return method(self, *args, **kwargs)

    return create_engine_config


def _replaces_the_operators(method: Callable[..., Any]) -> Callable[..., Any]:
    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        from samebits.kernels.adapters.vllm.install import check, install

        check(self.vllm_config)
        _compare(self.vllm_config)
        result = method(self, *args, **kwargs)
        install(self)
        return result

    return load_model


def _warms_the_operators(method: Callable[..., Any]) -> Callable[..., Any]:
    def compile_or_warm_up_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        from samebits.kernels.adapters.vllm.warm import warm

        warm(self)
        return method(self, *args, **kwargs)

    return compile_or_warm_up_model


def _asks_no_class(method: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled code calls operators without asking the class of a weight what they mean.

    vLLM's weights are a subclass that changes no meaning, but sends each call of an operator by way of Python and
    through the dispatcher a second time. Guards of PyTorch, which would see the difference, are above this.
    """

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return method(self, *args, **kwargs)

    return __call__


def _prepares_a_pass(method: Callable[..., Any]) -> Callable[..., Any]:
    def build(self: Any, common_prefix_len: int, common_attn_metadata: Any, *args: Any, **kwargs: Any) -> Any:
        from samebits.kernels.adapters.vllm.attention import note_shortest

        # FlashAttention's division of the pass among its programs: nobody here reads it, and every step waits for it.
        self.aot_schedule = False
        built = method(self, common_prefix_len, common_attn_metadata, *args, **kwargs)
        return note_shortest(built, common_attn_metadata)

    return build


def _compare(config: Any) -> None:
    """With the lock that the environment names, where no `engine_options` of this process did (vllm serve, Ray).

    Raises:
        PatchError: a set-up other than the locked one.
    """
    from samebits.kernels.adapters.setup import proved

    if not os.environ.get(proved.VARIABLE) or os.environ.get(REQUEST) or "rollout" in proved.COMPARED:
        return
    proved.compare("rollout", {"kernels": switch.TABLE}, None, False, _arguments(config), whole=False)


def _arguments(config: Any) -> dict[str, Any]:
    """Those of the engine's arguments that its config still holds as they were given."""
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    return {
        "dtype": model.dtype,
        "max_model_len": model.max_model_len,
        "enforce_eager": model.enforce_eager,
        "logprobs_mode": str(model.logprobs_mode),
        "quantization": model.quantization,
        "kv_cache_dtype": cache.cache_dtype,
        "block_size": cache.block_size if getattr(cache, "user_specified_block_size", False) else None,
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
    }


def _keep_weights() -> None:
    """vLLM on CPU packs the weights of linears for its own products and drops them; ours read them as they are."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    def keep(self: Any, layer: Any) -> None:
        return None

    for owner in (UnquantizedLinearMethod, UnquantizedEmbeddingMethod):
        owner.process_weights_after_loading = keep
