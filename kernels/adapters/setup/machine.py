"""What bits depend on besides the code: variables and the processor. Importing it loads neither torch nor vLLM."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from samebits.kernels.adapters.setup import cpu_pieces
from samebits.kernels.adapters.vllm import switch

NUMBERS = (
    "VLLM_",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_",
    "DNNL_",
    "MKL_",
    "CUBLAS",
    "NVIDIA_TF32",
    "TORCH_ALLOW_TF32",
    "TORCH_BLAS_PREFER",
    "PYTORCH_TUNABLEOP",
    "NCCL_",
    "OMP_NUM_THREADS",
    switch.VARIABLE,
    cpu_pieces.VARIABLE,
)
"""Prefixes of variables that can change a bit."""
SILENT = (
    "VLLM_LOGGING_LEVEL",
    "VLLM_NO_USAGE_STATS",
    "VLLM_PLUGINS",
    "VLLM_DIST_IDENT",
    "VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_WORKER_MULTIPROC_METHOD",
)
"""Those of them that change none."""
PRIVATE = re.compile(r"(^|_)(API|ACCESS)?KEYS?(_|$)|SECRET|PASSW|CREDENTIAL|(^|_)AUTH(_|$)|(^|_)TOKEN(S|_FILE)?$")
"""Names of what nobody may read in a report or a lock."""
WHERE = re.compile(
    r"(^|_)(HOST(NAME)?|IPS?|PORT|URL|ADDRESS|(?<!_SO_)PATH|DIR|ROOT|(?<!KV_)CACHE(_(ROOT|DIR|PATH))?$"
    r"|LOG(GING)?|DEBUG|VERBOSE|STATS|TIMEOUT)(_|$)"
)
"""Names of where something lies or listens and of what is logged: other on each machine, no bit depends on it. The path
of a shared library (VLLM_NCCL_SO_PATH) is none of them, nor is VLLM_KV_CACHE_LAYOUT."""
CPUINFO = Path("/proc/cpuinfo")


def device(asked: Literal["auto", "cpu", "cuda"] = "auto") -> Literal["cpu", "cuda"]:
    """The device that is meant: as asked, or cuda where torch sees one."""
    if asked != "auto":
        return asked
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def number_variables(environment: Mapping[str, str], besides: tuple[str, ...] = ()) -> dict[str, str]:
    """Those variables that can change a bit, by name.

    Args:
        besides: further ones that change none where this is asked.
    """
    return {
        key: value
        for key, value in sorted(environment.items())
        if key.startswith(NUMBERS) and not silent(key) and key not in besides
    }


def silent(name: str) -> bool:
    """Whether a variable is in no report and no lock: it changes no bit, or it is private."""
    return name in SILENT or private(name) or WHERE.search(name) is not None


def private(name: str) -> bool:
    """Whether a variable or an argument of this name holds what nobody else may read."""
    return PRIVATE.search(name.upper()) is not None


def cpu_model() -> str:
    """Architecture and model of the processor."""
    return f"{platform.machine()}, {_cpuinfo().get('model name', platform.processor())}"


def cpu() -> str:
    """Model, and a digest of the instruction sets: kernels are chosen by them."""
    flags = hashlib.sha256(" ".join(sorted(_cpuinfo().get("flags", "").split())).encode()).hexdigest()[:16]
    return f"{cpu_model()}, flags {flags}"


def gpu(index: int = 0) -> str:
    """Name and compute capability of a GPU that torch sees."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    return f"{properties.name}, compute capability {properties.major}.{properties.minor}"


def _cpuinfo() -> dict[str, str]:
    """Of one processor: they are alike."""
    try:
        text = CPUINFO.read_text(encoding="utf-8")
    except OSError:
        return {}
    first = text.partition("\n\n")[0]
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
