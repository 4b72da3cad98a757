"""A side that is exact by construction, and faults to plant in it. Every position is computed by the same calls on the
same shapes, whatever the path or the company.

Legend: B rows, L length, D width, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

VOCABULARY, WIDTH = 48, 16


class Net(nn.Module):
    """A recurrence over positions: state = tanh(decay * state + embed), logits = head @ state."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.decay = nn.Parameter(torch.full((1, WIDTH), 0.5))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids_BL: torch.Tensor, cache: Any = None) -> tuple[torch.Tensor, Any]:
        x_BLD = self.embed(ids_BL)
        start = torch.zeros(1, WIDTH) if cache is None else cache
        if self.fault == "decode" and cache is not None:
            start = start * (1 + 2**-20)
        rows = [self._row(x_LD, start, len(x_BLD)) for x_LD in x_BLD]
        return torch.stack([logits_LV for logits_LV, _ in rows]), rows[-1][1]

    def _row(self, x_LD: torch.Tensor, state_1D: torch.Tensor, company: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.fault == "deaf":
            x_LD = (x_LD * 16).round() / 16
        logits = []
        for x_1D in x_LD.split(1):
            state_1D = torch.tanh(self.decay * state_1D + x_1D)
            if self.fault == "company" and company > 1:
                state_1D = state_1D * (1 + 2**-20)
            logits.append(self.head(state_1D))
        logits_LV = torch.cat(logits)
        if self.fault == "nan":
            logits_LV = logits_LV.masked_fill(x_LD[:, :1] > 1, torch.nan)
        return logits_LV, state_1D


def write(folder: Path) -> Path:
    """A folder with its weights."""
    from safetensors.torch import save_model

    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        net.decay.add_(torch.randn(1, WIDTH) * 0.1)
        net.head.weight.mul_(3)
    folder.mkdir()
    save_model(net, str(folder / "model.safetensors"))
    return folder


class Steady:
    """What the factory returns."""

    vocabulary = VOCABULARY
    max_positions = 64

    def __init__(self, module: Net) -> None:
        self.module = module

    def forward(self, ids_BL: torch.Tensor, positions_BL: torch.Tensor) -> torch.Tensor:
        """Logits [B, L, V] of whole sequences."""
        logits_BLV: torch.Tensor = self.module(ids_BL)[0]
        return logits_BLV

    def decode(self, ids_1L: torch.Tensor, positions_1L: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        """The tokens after those in the cache."""
        logits_1LV, cache = self.module(ids_1L, cache)
        return logits_1LV, cache


def factory(model: str, dtype: torch.dtype, device: torch.device, fault: str = "") -> Steady:
    """`model` is the folder; `fault` plants one: decode, company, deaf (one ulp is rounded away), nan."""
    from safetensors.torch import load_model

    net = Net(fault)
    load_model(net, str(Path(model) / "model.safetensors"))
    return Steady(net.to(device, dtype).eval())
