"""Logprob as engine and trainer compute it: a whole float32 log_softmax, then a gather."""

from __future__ import annotations

import torch


def replaced(logits: torch.Tensor, targets: torch.Tensor, temperature: torch.Tensor | None = None) -> torch.Tensor:
    """log_softmax in float32, as vLLM's sampler does."""
    z = logits.float() if temperature is None else logits.float() / temperature[:, None]
    return torch.log_softmax(z, -1, dtype=torch.float32).gather(-1, targets.long()[:, None])[:, 0]
