"""The device's exponential: the one transcendental function in the row operators. Its bits belong to the device.

On CUDA it is `tl.exp`, as the fast kernels use it; on CPU `torch.exp`, whose result does not depend on the place of an
element.
"""

from __future__ import annotations

import torch


def device_exp(x: torch.Tensor) -> torch.Tensor:
    """exp(x), float32 to float32."""
    if not x.is_cuda:
        return torch.exp(x)
    from samebits.kernels.ops.device_exp_triton import exp_cuda

    return exp_cuda(x)
