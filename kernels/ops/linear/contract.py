"""The bits of the linear operator: the plainest kernel. M rows, N outputs, K reduced in S segments.

CUDA: one tile per program, one loop over K, one float32 accumulator that every 16-wide MMA step adds into, K ascending,
begun anew for each segment. CPU: the same chains one K at a time, written with elementwise PyTorch, whose result for a
row cannot depend on other rows. Both add the sums of the segments in ascending order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.kernels.ops.linear.checks import check
from samebits.kernels.ops.linear.segments import length, segments


def contract(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., K], weight [N, K], bias [N] or None, one dtype: [..., N] in that dtype, rounded once from float32."""
    return _contract(x, weight, bias, x.dtype)


def contract_wide(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same without the last rounding: [..., N] float32."""
    return _contract(x, weight, bias, torch.float32)


def _contract(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    check(x, weight, bias)
    x_MK = x.reshape(-1, x.shape[-1])
    if x.device.type == "cpu":
        y_MN = _on_cpu(x_MK, weight, bias).to(dtype)
    else:
        from samebits.kernels.ops.linear.segments_triton import walk
        from samebits.kernels.ops.linear.triton import PLAIN, chain

        y_MN = (chain if segments(x_MK.shape[1]) == 1 else walk)(x_MK, weight, bias, PLAIN, dtype)
    return y_MN.reshape(*x.shape[:-1], weight.shape[0])


def _on_cpu(x_MK: Tensor, weight_NK: Tensor, bias: Tensor | None) -> Tensor:
    L = length(x_MK.shape[1])
    first, *later = zip(x_MK.split(L, 1), weight_NK.split(L, 1), strict=True)
    total_MN = _chain_on_cpu(*first)
    for x_ML, weight_NL in later:
        total_MN += _chain_on_cpu(x_ML, weight_NL)
    if bias is not None:
        total_MN += bias.float()
    return total_MN


def _chain_on_cpu(x_ML: Tensor, weight_NL: Tensor) -> Tensor:
    acc_MN = torch.zeros(x_ML.shape[0], weight_NL.shape[0], dtype=torch.float32)
    x_LM, weight_LN = x_ML.float().T.contiguous(), weight_NL.float().T.contiguous()
    for x_M, weight_N in zip(x_LM, weight_LN, strict=True):
        acc_MN += x_M[:, None] * weight_N
    return acc_MN


def contract_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, wanted: tuple[bool, ...] = (True, True, True)
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of x, weight and bias by plain matrix products: the same from run to run, not promised across batch
    sizes."""
    grad_MN, x_MK = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
    grad_x = (grad_MN @ weight).reshape(x.shape) if wanted[0] else None
    grad_weight = grad_MN.T @ x_MK if wanted[1] else None
    grad_bias = grad_MN.float().sum(0).to(bias.dtype) if bias is not None and wanted[2] else None
    return grad_x, grad_weight, grad_bias
