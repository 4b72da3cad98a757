"""cuBLASLt without split-K, called directly: y[M, N] = x[M, K] weight[N, K]^T + bias[N].

No switch of the process is touched: PyTorch's own matmuls in the same process keep their algorithms and bits. The
library is the one
PyTorch has already loaded; no workspace is given, and reductions across thread blocks are masked out of the search.
Where the contract cuts K into segments, they are a batch of such products with float32 results, folded elsewhere.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

# Values of cublasLt.h (cuBLAS 12 and 13).
_COMPUTE_32F, _R_32F, _R_16F, _R_16BF, _OP_T = 68, 0, 2, 14, 1
_DESC_TRANS_A, _DESC_EPILOGUE, _DESC_BIAS_POINTER, _DESC_BIAS_TYPE, _EPILOGUE_BIAS = 3, 7, 8, 26, 4
_LAYOUT_BATCH, _LAYOUT_STRIDE = 5, 6
_PREF_WORKSPACE, _PREF_REDUCTION, _PREF_ALIGN_A = 1, 3, 5
_CONFIG_SPLIT_K, _CONFIG_REDUCTION = 2, 3
_TYPES = {torch.bfloat16: _R_16BF, torch.float16: _R_16F}
ALIGNMENT = 16
"""Bytes to which rows and pointers must be aligned."""


class _Algo(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64 * 8)]


class _Choice(ctypes.Structure):
    _fields_ = [
        ("algo", _Algo),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


@dataclass(slots=True, frozen=True)
class Problem:
    """What an algorithm is chosen for. segments above 1: a batch of products, one for each segment of K, in float32."""

    M: int
    N: int
    K: int
    dtype: torch.dtype
    has_bias: bool
    device: int
    segments: int = 1


@dataclass(slots=True)
class _Plan:
    """Descriptors of one problem and its algorithm; the pointers keep their objects alive."""

    desc: ctypes.c_void_p
    layouts: tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    algo: _Algo
    lock: threading.Lock


class CublasLtError(RuntimeError):
    """A cuBLASLt call that did not return success."""


@cache
def _library() -> ctypes.CDLL:
    major = (torch.version.cuda or "13").split(".")[0]
    library = ctypes.CDLL(f"libcublasLt.so.{major}")
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    return library


def _call(name: str, *args: object) -> None:
    status = getattr(_library(), name)(*args)
    if status != 0:
        raise CublasLtError(f"{name} returned status {status}")


def version() -> int:
    """The version of the loaded cuBLASLt, for example 130200."""
    return int(_library().cublasLtGetVersion())


@cache
def _handle(device: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        _call("cublasLtCreate", ctypes.byref(handle))
    return handle


def _set(
    function: str,
    target: ctypes.c_void_p,
    attribute: int,
    value: ctypes.c_int32 | ctypes.c_int64 | ctypes.c_uint64 | ctypes.c_void_p,
) -> None:
    _call(function, target, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))


def _describe(problem: Problem) -> tuple[ctypes.c_void_p, tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]]:
    """Row-major y = x w^T is column-major y^T = w x^T: A is w (K x N, transposed), B is x (K x M), D is y^T (N x M)."""
    desc = ctypes.c_void_p()
    _call("cublasLtMatmulDescCreate", ctypes.byref(desc), _COMPUTE_32F, _R_32F)
    _set("cublasLtMatmulDescSetAttribute", desc, _DESC_TRANS_A, ctypes.c_int32(_OP_T))
    data_type = _TYPES[problem.dtype]
    if problem.has_bias:
        _set("cublasLtMatmulDescSetAttribute", desc, _DESC_EPILOGUE, ctypes.c_int32(_EPILOGUE_BIAS))
        _set("cublasLtMatmulDescSetAttribute", desc, _DESC_BIAS_TYPE, ctypes.c_int32(data_type))
    S, segment = problem.segments, problem.K // problem.segments
    layouts = (
        _layout(data_type, segment, problem.N, problem.K, S, segment),
        _layout(data_type, segment, problem.M, problem.K, S, segment),
        _layout(data_type if S == 1 else _R_32F, problem.N, problem.M, problem.N, S, problem.M * problem.N),
    )
    return desc, layouts


def _layout(data_type: int, rows: int, columns: int, leading: int, batch: int, stride: int) -> ctypes.c_void_p:
    """A column-major matrix, or a batch of them `stride` elements apart; those of segments of K lie interleaved."""
    layout = ctypes.c_void_p()
    _call(
        "cublasLtMatrixLayoutCreate",
        ctypes.byref(layout),
        data_type,
        ctypes.c_uint64(rows),
        ctypes.c_uint64(columns),
        ctypes.c_int64(leading),
    )
    if batch > 1:
        _set("cublasLtMatrixLayoutSetAttribute", layout, _LAYOUT_BATCH, ctypes.c_int32(batch))
        _set("cublasLtMatrixLayoutSetAttribute", layout, _LAYOUT_STRIDE, ctypes.c_int64(stride))
    return layout


def _attribute(algo: _Algo, attribute: int) -> int:
    value, written = ctypes.c_int32(), ctypes.c_size_t()
    _call(
        "cublasLtMatmulAlgoConfigGetAttribute",
        ctypes.byref(algo),
        attribute,
        ctypes.byref(value),
        ctypes.c_size_t(4),
        ctypes.byref(written),
    )
    return value.value


def choices(problem: Problem, most: int = 1) -> list[str]:
    """Algorithms that do not split K, the library's favourite first, each as the hex of its 64 bytes."""
    desc, layouts = _describe(problem)
    preference = ctypes.c_void_p()
    _call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
    _set("cublasLtMatmulPreferenceSetAttribute", preference, _PREF_WORKSPACE, ctypes.c_uint64(0))
    _set("cublasLtMatmulPreferenceSetAttribute", preference, _PREF_REDUCTION, ctypes.c_int32(0))
    for operand in range(4):
        _set("cublasLtMatmulPreferenceSetAttribute", preference, _PREF_ALIGN_A + operand, ctypes.c_int32(ALIGNMENT))
    found, count = (_Choice * most)(), ctypes.c_int()
    try:
        _call(
            "cublasLtMatmulAlgoGetHeuristic",
            _handle(problem.device),
            desc,
            layouts[0],
            layouts[1],
            layouts[2],
            layouts[2],
            preference,
            most,
            found,
            ctypes.byref(count),
        )
    finally:
        _library().cublasLtMatmulPreferenceDestroy(preference)
        _destroy(desc, layouts)
    kept = [choice.algo for choice in found[: count.value] if choice.state == 0 and choice.workspace == 0]
    kept = [
        algo
        for algo in kept
        if _attribute(algo, _CONFIG_SPLIT_K) in (0, 1) and _attribute(algo, _CONFIG_REDUCTION) == 0
    ]
    return [bytes(algo).hex() for algo in kept]


def _destroy(desc: ctypes.c_void_p, layouts: tuple[ctypes.c_void_p, ...]) -> None:
    _library().cublasLtMatmulDescDestroy(desc)
    for layout in layouts:
        _library().cublasLtMatrixLayoutDestroy(layout)


def _plan(problem: Problem, pinned: str | None) -> _Plan:
    if pinned is None:
        favourites = choices(problem)
        if not favourites:
            raise CublasLtError(f"cuBLASLt {version()} has no algorithm without split-K for {problem}")
        pinned = favourites[0]
    algo = _Algo.from_buffer_copy(bytes.fromhex(pinned))
    desc, layouts = _describe(problem)
    return _Plan(desc, layouts, algo, threading.Lock())


def usable(problem: Problem, pinned: str) -> bool:
    """Whether the pinned algorithm runs this problem on this library without workspace."""
    algo = _Algo.from_buffer_copy(bytes.fromhex(pinned))
    desc, layouts = _describe(problem)
    result = _Choice()
    status = _library().cublasLtMatmulAlgoCheck(
        _handle(problem.device),
        desc,
        layouts[0],
        layouts[1],
        layouts[2],
        layouts[2],
        ctypes.byref(algo),
        ctypes.byref(result),
    )
    _destroy(desc, layouts)
    return bool(status == 0 and result.state == 0 and result.workspace == 0)


@cache
def _plan_of(
    M: int, N: int, K: int, dtype: torch.dtype, has_bias: bool, device: int, pinned: str | None, segments: int = 1
) -> tuple[_Plan, Any]:
    """The plan of a call and the library's product with all that no call changes; arguments: weight, x, y, stream."""
    plan = _plan(Problem(M, N, K, dtype, has_bias, device, segments), pinned)
    one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
    w_layout, x_layout, y_layout = plan.layouts
    product, handle = _library().cublasLtMatmul, _handle(device)
    first, second, algo = ctypes.byref(one), ctypes.byref(zero), ctypes.byref(plan.algo)
    none, pointer = ctypes.c_size_t(0), ctypes.c_void_p

    def run(weight: int, x: int, y: int, stream: int) -> int:
        w, to = pointer(weight), pointer(y)
        at = (first, w, w_layout, pointer(x), x_layout, second, to, y_layout, to, y_layout)
        status: int = product(handle, plan.desc, *at, algo, None, none, pointer(stream))
        return status

    return plan, run


def matmul(x_MK: Tensor, weight_NK: Tensor, bias: Tensor | None, pinned: str | None = None) -> Tensor:
    """[M, N] in the dtype of x (bf16 or f16). pinned: hex of an algorithm from `choices`; None takes the library's
    favourite."""
    (M, K), N = x_MK.shape, weight_NK.shape[0]
    y_MN = x_MK.new_empty((M, N))
    if M == 0:
        return y_MN
    device = x_MK.device.index or 0
    plan, run = _plan_of(M, N, K, x_MK.dtype, bias is not None, device, pinned)
    stream = torch._C._cuda_getCurrentRawStream(device)  # as Triton does: no Stream object per call
    if bias is None:
        status = run(weight_NK.data_ptr(), x_MK.data_ptr(), y_MN.data_ptr(), stream)
    else:
        with plan.lock:
            _set("cublasLtMatmulDescSetAttribute", plan.desc, _DESC_BIAS_POINTER, ctypes.c_void_p(bias.data_ptr()))
            status = run(weight_NK.data_ptr(), x_MK.data_ptr(), y_MN.data_ptr(), stream)
    if status:
        raise CublasLtError(f"cublasLtMatmul returned status {status}")
    return y_MN


def partials(x_MK: Tensor, weight_NK: Tensor, segments: int, pinned: str | None = None) -> Tensor:
    """The sums of equal segments of K: [S, M, N] float32. x and pinned as for `matmul`."""
    (M, K), N = x_MK.shape, weight_NK.shape[0]
    assert K % segments == 0
    part_SMN = x_MK.new_empty((segments, M, N), dtype=torch.float32)
    if M == 0:
        return part_SMN
    device = x_MK.device.index or 0
    _, run = _plan_of(M, N, K, x_MK.dtype, False, device, pinned, segments)
    status = run(weight_NK.data_ptr(), x_MK.data_ptr(), part_SMN.data_ptr(), torch._C._cuda_getCurrentRawStream(device))
    if status:
        raise CublasLtError(f"cublasLtMatmul returned status {status}")
    return part_SMN
