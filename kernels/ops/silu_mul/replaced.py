"""The activation as transformers and vLLM compute it: silu rounded to the dtype, then the product rounded again."""

from __future__ import annotations

import torch


def replaced(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up in the dtype of its inputs."""
    return torch.nn.functional.silu(gate) * up
