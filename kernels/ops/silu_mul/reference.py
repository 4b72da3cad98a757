"""SwiGLU's gate in float64 (Shazeer 2020, arXiv 2002.05202)."""

from __future__ import annotations

import torch


def reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up; float64, differentiable."""
    wide = gate.double()
    return wide * torch.sigmoid(wide) * up.double()
