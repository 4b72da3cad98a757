"""The meaning of the linear operator, in float64."""

from __future__ import annotations

import torch
from torch import Tensor


def reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., K] times weight [N, K] transposed, plus bias [N]: float64 [..., N]."""
    y = x.to(torch.float64) @ weight.to(torch.float64).T
    return y if bias is None else y + bias.to(torch.float64)
