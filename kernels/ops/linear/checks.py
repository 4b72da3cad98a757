"""What the linear operator accepts; anything else is an error that names the thing and the reason."""

from __future__ import annotations

from torch import Tensor

from samebits.kernels.ops.check import refuse, require_float, require_same

NAME = "linear"


def check(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raise ValueError unless x [..., K], weight [N, K], bias [N] share one supported dtype and device and are
    contiguous."""
    require_float(NAME, "x", x)
    require_same(NAME, x=x, weight=weight, bias=bias)
    shape, (N, K) = x.shape, weight.shape if weight.dim() == 2 else (0, -1)
    if K < 0 or not shape or shape[-1] != K:
        reason = "x and weight differ in K" if shape and K >= 0 else "x must be [..., K] and weight [N, K]"
        refuse(NAME, f"{reason}; got x {tuple(shape)}, weight {tuple(weight.shape)}")
    if N == 0 or K == 0:
        refuse(NAME, f"the weight is empty; got x {tuple(shape)}, weight {tuple(weight.shape)}")
    if bias is not None and tuple(bias.shape) != (N,):
        refuse(NAME, f"bias must be [{N}]")
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias)):
        if tensor is not None and not tensor.is_contiguous():
            refuse(NAME, f"{name} is not contiguous; call .contiguous() first")
