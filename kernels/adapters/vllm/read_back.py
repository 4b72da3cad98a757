"""What stands in a running engine and what really ran there; each function is for `LLM.collective_rpc`."""

from __future__ import annotations

from typing import Any

import torch

from samebits.kernels.adapters.vllm.install import HELD
from samebits.kernels.adapters.vllm.switch import digest
from samebits.kernels.contract_version import CONTRACT_VERSION
from samebits.kernels.ops.ran import counts

PROFILER = "samebits_profiler"
REPLACED = (
    "flashattnfwd",
    "flash_fwd",
    "kernel_unified_attention",
    "_topk_log_softmax",
    "rms_norm_kernel<",
    "act_and_mul_kernel",
    "rotary_embedding_kernel",
    "mean_mul_pow_rsqrt",
    "_silu_",
    "prepare_varlen",
)
"""Parts of the names, in lower case, of kernels that vLLM or its compiler runs for the replaced operators,
FlashAttention's schedule (prepare_varlen_num_blocks) among them.

Writing into the cache (reshape_and_cache_flash) is none.
"""


def read_back(worker: Any) -> dict[str, Any]:
    """contract, digest, replaced (lines), ran (kernel -> launches in this process, those of graph captures included).

    Empty `replaced`: the operators were not switched on.
    """
    return {
        "contract": CONTRACT_VERSION,
        "digest": digest(),
        "replaced": list(getattr(worker, HELD, ())),
        "ran": counts(),
    }


def watch(worker: Any) -> None:
    """Record every kernel from now on, replays of graphs included."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        kinds = [torch.profiler.ProfilerActivity.CUDA]
    profiler = torch.profiler.profile(activities=kinds)
    profiler.start()
    setattr(worker, PROFILER, profiler)


def watched(worker: Any) -> dict[str, tuple[int, float]]:
    """Kernel (on CPU: operator) -> how often it ran since `watch`, and microseconds in all."""
    profiler = getattr(worker, PROFILER)
    delattr(worker, PROFILER)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    profiler.stop()
    found: dict[str, tuple[int, float]] = {}
    for event in profiler.events():
        if torch.cuda.is_available() and event.device_type != torch._C._autograd.DeviceType.CUDA:
            continue
        count, spent = found.get(event.name, (0, 0.0))
        found[event.name] = count + 1, spent + event.time_range.elapsed_us()
    return found


def foreign(names: dict[str, Any]) -> list[str]:
    """Of the kernels seen: those that vLLM runs for operators which samebits replaced."""
    return sorted(name for name in names if any(part in name.lower() for part in REPLACED))
