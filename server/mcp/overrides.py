"""What a call may change of the person's experiment: figures and switches, never what code is loaded from where.

An override reaches the environment of a process and the arguments of an engine, so a list of what is allowed decides,
not one of what is not. What the person wrote into their own file stands as it is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from samebits.server.mcp.roots import Roots
    from samebits.tools.schema.experiment import Experiment, Scalar

NAMES = """
    ATEN_CPU_CAPABILITY CUBLASLT_WORKSPACE_SIZE CUBLAS_WORKSPACE_CONFIG CUDA_LAUNCH_BLOCKING
    DNNL_DEFAULT_FPMATH_MODE DNNL_MAX_CPU_ISA FLASH_ATTENTION_DETERMINISTIC KMP_BLOCKTIME MKL_CBWR MKL_DYNAMIC
    MKL_ENABLE_INSTRUCTIONS MKL_NUM_THREADS NCCL_ALGO NCCL_COLLNET_ENABLE NCCL_MAX_NCHANNELS NCCL_MIN_NCHANNELS
    NCCL_NTHREADS NCCL_NVLS_ENABLE NCCL_P2P_DISABLE NCCL_PROTO NVIDIA_TF32_OVERRIDE OMP_DYNAMIC OMP_NUM_THREADS
    OMP_PLACES OMP_PROC_BIND OMP_SCHEDULE OMP_WAIT_POLICY ONEDNN_DEFAULT_FPMATH_MODE ONEDNN_MAX_CPU_ISA
    PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF SAMEBITS_CPU_ATTN_PIECES TOKENIZERS_PARALLELISM TORCHDYNAMO_DISABLE
    TORCHINDUCTOR_COMPILE_THREADS TORCHINDUCTOR_EMULATE_PRECISION_CASTS TORCHINDUCTOR_FORCE_DISABLE_CACHES
    TORCHINDUCTOR_FREEZING TORCHINDUCTOR_MAX_AUTOTUNE TORCHINDUCTOR_MAX_AUTOTUNE_GEMM TORCH_ALLOW_TF32_CUBLAS_OVERRIDE
    TORCH_COMPILE_DISABLE TRITON_F32_DEFAULT TRITON_INTERPRET VLLM_ALLOW_LONG_MAX_MODEL_LEN
    VLLM_ALLREDUCE_USE_FLASHINFER VLLM_ALLREDUCE_USE_SYMM_MEM VLLM_ATTENTION_BACKEND VLLM_BATCH_INVARIANT
    VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER VLLM_CPU_ATTN_SPLIT_KV VLLM_CPU_INT4_W4A8 VLLM_CPU_KVCACHE_SPACE
    VLLM_CPU_NUM_OF_RESERVED_CPU VLLM_CPU_OMP_THREADS_BIND VLLM_DEEP_GEMM_WARMUP VLLM_DISABLED_KERNELS
    VLLM_DISABLE_COMPILE_CACHE VLLM_DISABLE_PYNCCL VLLM_DISABLE_SHARED_EXPERTS_STREAM
    VLLM_ENABLE_INDUCTOR_COORDINATE_DESCENT_TUNING VLLM_ENABLE_INDUCTOR_MAX_AUTOTUNE VLLM_ENABLE_PREGRAD_PASSES
    VLLM_FLASHINFER_ALLREDUCE_BACKEND VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE VLLM_FLOAT32_MATMUL_PRECISION
    VLLM_KV_CACHE_LAYOUT VLLM_LOGGING_LEVEL VLLM_MARLIN_INPUT_DTYPE VLLM_MARLIN_USE_ATOMIC_ADD VLLM_MLA_DISABLE
    VLLM_MOE_USE_DEEP_GEMM VLLM_ROCM_USE_AITER VLLM_ROCM_USE_SKINNY_GEMM VLLM_SSM_CONV_STATE_LAYOUT
    VLLM_TRITON_FORCE_FIRST_CONFIG VLLM_USE_AOT_COMPILE VLLM_USE_BREAKABLE_CUDAGRAPH VLLM_USE_DEEP_GEMM
    VLLM_USE_DEEP_GEMM_E8M0 VLLM_USE_FLASHINFER_MOE_INT4 VLLM_USE_FLASHINFER_SAMPLER VLLM_USE_FUSED_MOE_GROUPED_TOPK
    VLLM_USE_NCCL_SYMM_MEM VLLM_USE_STANDALONE_COMPILE VLLM_USE_TRITON_AWQ VLLM_USE_V2_MODEL_RUNNER
    VLLM_V1_OUTPUT_PROC_CHUNK_SIZE
    """
SWITCHES = frozenset(NAMES.split())
"""Variables that choose an algorithm, a precision, a count or how much is logged, and name no file and no module."""
SWITCH_VALUE = re.compile(r"[\w.,:|+-]{0,200}")
WORD = re.compile(r"[A-Za-z0-9_+-]*")
CODE = re.compile(r"trust_remote_code|hf_token|plugin|.*(_cls|_class|_plugins?|_parser|_processors?)")
"""Arguments of vllm.LLM that load code, whatever their value."""


def check(own: Experiment, asked: Experiment, roots: Roots, python: str) -> None:
    """Refuse what overrides may not change.

    Args:
        own: the file alone.
        asked: the file with the overrides.
        python: the interpreter the server was started with, allowed.

    Raises:
        UserError: a variable that is no known switch, an argument that names code or a place outside the roots, another
        python: side, another interpreter.
    """
    sides = (own.rollout.side, own.trainer.side)
    for role, before, now in (("rollout", own.rollout, asked.rollout), ("trainer", own.trainer, asked.trainer)):
        if now.side.startswith("python:") and now.side not in sides:
            raise _refused(f"{role}.side {now.side!r}", "names code that is not in the file", f"[{role}]")
        for name, value in _changed(before.env, now.env):
            if name not in SWITCHES or not SWITCH_VALUE.fullmatch(str(value)):
                why = "is not among the switches that only change how numbers are computed"
                why = why if name not in SWITCHES else "has a value that is no plain word or number"
                raise _refused(f"{role}.env.{name}", why, f"[{role}.env]")
    for section, old, new in (
        ("rollout.engine", own.rollout.engine, asked.rollout.engine),
        ("trainer.options", own.trainer.options, asked.trainer.options),
    ):
        for name, value in _changed(old, new):
            _argument(f"{section}.{name}", name, value, section, roots)
    if asked.pool.worker_python not in (own.pool.worker_python, python):
        raise UserError(
            f"pool.worker_python {asked.pool.worker_python!r}",
            "a call cannot choose the interpreter",
            "have the person who runs the server give --worker-python",
        )


def _argument(key: str, name: str, value: Scalar, section: str, roots: Roots) -> None:
    if CODE.fullmatch(name):
        raise _refused(key, "loads code", f"[{section}]")
    if not isinstance(value, str) or WORD.fullmatch(value):
        return
    if "/" not in value:
        raise _refused(f"{key} {value!r}", "is no plain word, number or path: it could name code", f"[{section}]")
    if value[0] == "~" or not roots.path(value, key).exists():
        raise _refused(f"{key} {value!r}", "no such file or folder below the allowed ones", f"[{section}]")


def _changed(before: Mapping[str, Scalar], now: Mapping[str, Scalar]) -> list[tuple[str, Scalar]]:
    return [(name, value) for name, value in now.items() if name not in before or before[name] != value]


def _refused(thing: str, reason: str, where: str) -> UserError:
    return UserError(thing, reason, f"a call cannot set it: have the person write it under {where} of samebits.toml")
