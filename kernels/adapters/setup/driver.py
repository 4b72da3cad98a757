"""The version of the NVIDIA driver, from whoever knows it."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

UNKNOWN = "unknown"
"""Nobody knows it: equal to nothing, itself included."""
KERNEL_MODULE = Path("/proc/driver/nvidia/version")
NVML = "libnvidia-ml.so.1"
SMI = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def version() -> str:
    """For example "580.159.04"; or UNKNOWN."""
    return _nvml() or _kernel_module() or _smi() or UNKNOWN


def _nvml() -> str:
    try:
        library = ctypes.CDLL(NVML)
        text = ctypes.create_string_buffer(96)
        if library.nvmlInit_v2() or library.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text))):
            return ""
        library.nvmlShutdown()
    except (OSError, AttributeError):
        return ""
    return text.value.decode("ascii", errors="replace")


def _kernel_module() -> str:
    try:
        found = re.search(r"\b\d+\.\d+(\.\d+)?\b", KERNEL_MODULE.read_text(encoding="utf-8"))
    except OSError:
        return ""
    return found.group() if found else ""


def _smi() -> str:
    try:
        done = subprocess.run(SMI, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.partition("\n")[0].strip()
