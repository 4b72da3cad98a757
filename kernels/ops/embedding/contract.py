"""The bits of embedding: rows copied by PyTorch's indexing, on every device."""

from __future__ import annotations

import torch


def contract(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """See README.md. An id outside the table gives a row of NaN."""
    known = (ids >= 0) & (ids < table.shape[0])
    rows = table[torch.where(known, ids, 0).long()]
    return torch.where(known[..., None], rows, torch.full_like(rows, torch.nan))


def contract_backward(grad: torch.Tensor, ids: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Gradient of the table, [V, D]: float32 sums in ascending token order, rounded once. One token at a time."""
    width = grad.shape[-1]
    total = torch.zeros((vocabulary, width), dtype=torch.float32, device=grad.device)
    for token, row in zip(ids.flatten().tolist(), grad.reshape(-1, width).float(), strict=True):
        if 0 <= token < vocabulary:
            total[token] += row
    return total.to(grad.dtype)
