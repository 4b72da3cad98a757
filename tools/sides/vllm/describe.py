"""What really runs in the engine, read from the live objects in the worker."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from samebits.kernels.adapters.setup import cpu_pieces, machine
from samebits.kernels.adapters.vllm import cpu_pieces as pieces
from samebits.kernels.adapters.vllm import switch
from samebits.tools.sides.vllm import hooks
from samebits.tools.sides.vllm.install import runner_of

if TYPE_CHECKING:
    from samebits.tools.schema.experiment import Rollout

CPU_KERNELS = {"packed_weight": "sgl", "handler": "oneDNN", "zen_weight": "zentorch"}


def look(worker: Any) -> dict[str, Any]:
    """Inside the worker: runner, attention, KV cache, linears, compilation."""
    runner = worker.model_runner
    hooks.check_held(runner_of(worker), {"runner": runner})
    config = runner.vllm_config
    compilation = config.compilation_config
    caches = [cache for cache in runner.kv_caches if hasattr(cache, "shape")]
    facts: dict[str, Any] = {
        "runner": runner_of(worker),
        "runner_class": type(runner).__name__,
        "attention": ", ".join(sorted({group.backend.__name__ for groups in runner.attn_groups for group in groups})),
        "compiled": str(getattr(compilation.mode, "name", compilation.mode)),
        "graphs": str(getattr(compilation.cudagraph_mode, "name", "")),
        "graph_sizes": ", ".join(str(size) for size in sorted(compilation.cudagraph_capture_sizes or ())),
        "most_in_flight": config.scheduler_config.max_num_seqs,
        "custom_ops": ", ".join(compilation.custom_ops),
        "block_size": config.cache_config.block_size,
        "kv_cache": ", ".join(
            sorted(
                {f"{tuple(c.shape)} strides {tuple(c.stride())} {str(c.dtype).removeprefix('torch.')}" for c in caches}
            )
        ),
        "kv_cache_layers": len(runner.kv_caches),
        "linear": ", ".join(_linears(runner.get_model())),
    }
    if str(runner.device) == "cpu":
        facts |= _cpu(config)
    return facts


def _linears(model: Any) -> list[str]:
    """Distinct ways in which linears are computed, with how many modules use each."""
    counts: dict[str, int] = {}
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is None or not hasattr(module, "weight"):
            continue
        name = type(method).__name__
        if (chosen := getattr(module, "cpu_linear", None)) is not None:
            name += f" ({_cpu_kernel(chosen)})"
        counts[name] = counts.get(name, 0) + 1
    return [f"{name} x{count}" for name, count in sorted(counts.items())]


def _cpu_kernel(chosen: Any) -> str:
    """Which matrix product vLLM chose for a linear on CPU: told by what its closure holds."""
    held = getattr(getattr(chosen, "__code__", None), "co_freevars", ())
    return next(
        (name for variable, name in CPU_KERNELS.items() if variable in held),
        getattr(chosen, "__name__", type(chosen).__name__),
    )


def _cpu(config: Any) -> dict[str, Any]:
    import torch
    from vllm.v1.attention.backends import cpu_attn

    head = config.model_config.get_head_size()
    isa = cpu_attn._get_attn_isa(config.model_config.dtype, config.cache_config.block_size, head, "auto")
    amx = torch.cpu._is_amx_tile_supported()
    cache = int(torch.cpu.get_capabilities().get("l2_cache_size", 0))
    return {
        "amx": amx,
        "isa": isa,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "attention_pieces": pieces.installed(),
        "one_tile": cpu_pieces.keys_of_a_prefill(isa, head, config.model_config.dtype.itemsize, cache),
    }


def describe(llm: Any, installed: str, config: Rollout) -> tuple[dict[str, str | int | float | bool | None], list[str]]:
    """Facts and lines of a started engine.

    Raises:
        UserError: an attribute of the hook table is not there.
    """
    facts: dict[str, Any] = {"name": f"vllm {installed}", "vllm": installed, "torch": version("torch")}
    facts |= llm.collective_rpc(look)[0]
    hooks.check_held(facts["runner"], {"engine": llm.llm_engine})
    facts |= {
        "hooks": hooks.status(installed, facts["runner"]),
        "logprobs_mode": str(llm.llm_engine.model_config.logprobs_mode),
        "dtype": str(llm.llm_engine.model_config.dtype).removeprefix("torch."),
        "eager": config.eager,
        "max_model_len": config.max_model_len,
        "prefix_caching": bool(llm.llm_engine.vllm_config.cache_config.enable_prefix_caching),
        "token_budget": llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens,
    }
    lines = [
        f"{facts['name']}, runner {facts['runner']}, attention {facts['attention']}, "
        f"{'eager' if config.eager else 'compiled'}, hooks {facts['hooks']}",
        f"logprobs {facts['logprobs_mode']}, block size {facts['block_size']}, KV cache {facts['kv_cache']}",
        f"linears: {facts['linear']}; custom ops: {facts['custom_ops']}",
    ]
    if facts.get("amx") and facts["dtype"] == "bfloat16":
        lines.append(
            "AMX: a row alone and in company can have other bits in bfloat16 linears; "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 switches it off"
        )
    one_tile = facts.get("one_tile")
    if one_tile and one_tile < config.max_model_len and not facts["attention_pieces"] and not switch.asked():
        lines.append(
            f"CPU attention: behind {one_tile} tokens a row of a prefill has other bits than a decode step; "
            f"{cpu_pieces.VARIABLE}=1 makes them equal"
        )
    lines += [f"{key}={value}" for key, value in machine.number_variables(os.environ).items()]
    return facts, lines
