"""Weights of a live transformers model under the names its checkpoint has."""

from __future__ import annotations

from typing import Any

import torch


def checkpoint_tensors(model: Any) -> dict[str, torch.Tensor]:
    """All weights on CPU under checkpoint names: merged experts are split again, a tied head is left out."""
    from transformers.core_model_loading import revert_weight_conversion

    seen: set[tuple[int, torch.Size]] = set()
    state: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        key = (tensor.data_ptr(), tensor.shape)
        if tensor.numel() and key in seen:
            continue
        seen.add(key)
        state[name] = tensor.detach()
    reverted = revert_weight_conversion(model, state)
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in reverted.items()}
