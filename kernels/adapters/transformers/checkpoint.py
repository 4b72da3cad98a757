"""Weights under the names and shapes of a Hugging Face checkpoint, as an engine's loader expects them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, copy) of every weight. Merged experts [experts, ...] are split into one matrix per expert; a tied lm_head has no entry.

    Copies, because an engine may keep or pack what it is given while the trainer goes on.
    """
    for name, parameter in model.named_parameters():
        weight = parameter.detach()
        stem, _, leaf = name.rpartition(".")
        if stem.endswith(".experts") and leaf == "gate_up_proj":
            for expert, both in enumerate(weight):
                gate, up = both.chunk(2)
                yield f"{stem}.{expert}.gate_proj.weight", gate.clone()
                yield f"{stem}.{expert}.up_proj.weight", up.clone()
        elif stem.endswith(".experts") and leaf == "down_proj":
            for expert, down in enumerate(weight):
                yield f"{stem}.{expert}.down_proj.weight", down.clone()
        else:
            yield name, weight.clone()
