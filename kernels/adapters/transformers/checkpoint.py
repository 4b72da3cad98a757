"""Weights of a live transformers model under the names its checkpoint has."""

from __future__ import annotations

from typing import Any

import torch


def checkpoint_tensors(model: Any, *, in_place: bool = False) -> dict[str, torch.Tensor]:
    """All weights under checkpoint names: merged experts are split again, a tied head is left out.

    Args:
        in_place: where they lie, not copied unless a conversion asks for it: for a reader that copies them. Else copies
            on CPU.
    """
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
    if in_place:
        return {name: tensor.detach().contiguous() for name, tensor in reverted.items()}
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in reverted.items()}
