"""Rows that go through a kernel together: what it gives a row may follow how many there are. Legend: T token rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def in_groups(number_T: torch.Tensor, run: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """`run` on the row indices of each group of equal numbers, the results back in the order of the rows."""
    rows_T = torch.arange(len(number_T), device=number_T.device)
    groups = [rows_T[number_T == number] for number in torch.unique(number_T)]
    return torch.cat([run(rows) for rows in groups])[torch.argsort(torch.cat(groups))]
