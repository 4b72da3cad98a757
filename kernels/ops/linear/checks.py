"""What the linear operator accepts; anything else is an error that names the thing and the reason."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def check(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raise ValueError unless x [..., K], weight [N, K], bias [N] share one supported dtype and one device and rows are dense."""
    if x.dtype not in DTYPES:
        raise ValueError(f"linear: x has dtype {x.dtype}; supported are bfloat16, float16 and float32")
    if x.dim() < 1 or weight.dim() != 2:
        raise ValueError(f"linear: x must be [..., K] and weight [N, K]; got {tuple(x.shape)} and {tuple(weight.shape)}")
    if x.shape[-1] != weight.shape[1]:
        raise ValueError(f"linear: x has K={x.shape[-1]} but weight has K={weight.shape[1]}")
    if weight.shape[0] == 0 or weight.shape[1] == 0:
        raise ValueError(f"linear: weight {tuple(weight.shape)} is empty")
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(f"linear: bias must be [{weight.shape[0]}]; got {tuple(bias.shape)}")
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        if tensor.dtype != x.dtype:
            raise ValueError(f"linear: {name} has dtype {tensor.dtype} but x has {x.dtype}; cast one of them first")
        if tensor.device != x.device:
            raise ValueError(f"linear: {name} is on {tensor.device} but x is on {x.device}")
        if not tensor.is_contiguous():
            raise ValueError(f"linear: {name} {tuple(tensor.shape)} is not contiguous (strides {tensor.stride()}); call .contiguous() first")
    if x.device.type not in ("cpu", "cuda"):
        raise ValueError(f"linear: device {x.device} is not supported; use cpu or cuda")
