"""Checkpoint weights into a live transformers model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


def load_into(model: Any, weights: Path) -> None:
    """Copy checkpoint weights (a safetensors file or a model folder) into the live model, in place.

    Raises:
        UserError: a weight is missing or has another shape; then nothing was changed.
    """
    from safetensors.torch import load_file

    files = sorted(weights.glob("*.safetensors")) if weights.is_dir() else [weights]
    if not files or not all(file.is_file() for file in files):
        raise UserError(
            str(weights), "no safetensors weights here", "give the file that a step saved, or a model folder"
        )
    state = {name: tensor for file in files for name, tensor in load_file(file).items()}
    # Through the loader, so that names and merged tensors are converted exactly as at start-up.
    fresh, report = type(model).from_pretrained(
        None, config=model.config, state_dict=state, dtype=next(model.parameters()).dtype, output_loading_info=True
    )
    wrong = sorted(report["missing_keys"]) + sorted(str(entry[0]) for entry in report["mismatched_keys"])
    if wrong:
        raise UserError(
            str(weights),
            f"{len(wrong)} weights missing or of another shape, first {wrong[0]}",
            "push weights of the same model",
        )
    with torch.no_grad():
        own = model.state_dict()
        for name, tensor in fresh.state_dict().items():
            own[name].copy_(tensor)
