"""Environment variables of a side's process, before the experiment's own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from samebits.kernels.adapters.vllm import switch

if TYPE_CHECKING:
    from samebits.tools.schema.experiment import Rollout, Trainer


def variables(config: Rollout | Trainer, device: Literal["cpu", "cuda"] | None) -> dict[str, str]:
    """The parent's environment plus what every side needs: nothing is downloaded, nothing is reported home.

    Args:
        device: None: only torch could tell, and no engine will be started.
    """
    env = dict(os.environ)
    env |= {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
    }
    env.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if config.side == "vllm":
        # The engine stays in the side's own process: one process to pin, to hook and to kill.
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        env.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
        if config.kernels == "samebits":
            env[switch.VARIABLE] = switch.TABLE
        if device == "cpu":
            env.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    return env
