"""Logprob of the target in float64."""

from __future__ import annotations

import torch


def reference(logits: torch.Tensor, targets: torch.Tensor, temperature: torch.Tensor | None = None) -> torch.Tensor:
    """log_softmax(logits / temperature)[target]; float64, differentiable."""
    z = logits.double() if temperature is None else logits.double() / temperature.double()[:, None]
    return torch.log_softmax(z, -1).gather(-1, targets.long()[:, None])[:, 0]
