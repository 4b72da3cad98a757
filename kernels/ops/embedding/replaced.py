"""Embedding as PyTorch does it."""

from __future__ import annotations

import torch


def replaced(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """torch.nn.functional.embedding."""
    return torch.nn.functional.embedding(ids, table)
