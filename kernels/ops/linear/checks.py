"""What the linear operator accepts; anything else is an error that names the thing and the reason."""

from __future__ import annotations

from torch import Tensor

from samebits.kernels.ops.check import require, require_float, require_same

NAME = "linear"


def check(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raise ValueError unless x [..., K], weight [N, K], bias [N] share one supported dtype and device and are
    contiguous."""
    require_float(NAME, "x", x)
    require_same(NAME, x=x, weight=weight, bias=bias)
    shapes = f"x {tuple(x.shape)}, weight {tuple(weight.shape)}"
    require(x.dim() >= 1 and weight.dim() == 2, NAME, f"x must be [..., K] and weight [N, K]; got {shapes}")
    require(x.shape[-1] == weight.shape[1], NAME, f"x and weight differ in K; got {shapes}")
    require(weight.numel() > 0, NAME, f"the weight is empty; got {shapes}")
    require(bias is None or tuple(bias.shape) == (weight.shape[0],), NAME, f"bias must be [{weight.shape[0]}]")
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias)):
        contiguous = tensor is None or tensor.is_contiguous()
        require(contiguous, NAME, f"{name} is not contiguous; call .contiguous() first")
