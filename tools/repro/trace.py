"""Trace files: see samebits.tools.schema.artifacts.trace for what is in them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pydantic import ValidationError

from samebits.tools.schema.artifacts.trace import FORMAT, Trace
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    import torch


def names(number: int) -> tuple[str, str]:
    """File names of trace K."""
    return f"trace-{number}.json", f"trace-{number}.safetensors"


def read_trace(folder: Path, number: int = 0) -> tuple[Trace, dict[str, torch.Tensor]]:
    """Read one trace of a folder.

    Raises:
        UserError: missing, damaged, or of another format.
    """
    from safetensors.torch import load_file

    text, tensors = (folder / name for name in names(number))
    if not text.is_file() or not tensors.is_file():
        raise UserError(
            str(text), "no trace here", "run diff again; it stores a trace for each operator on its work list"
        )
    try:
        raw = json.loads(text.read_text(encoding="utf-8"))
        if raw.get("format") != FORMAT:
            raise UserError(
                str(text), f"trace format {raw.get('format')}, this samebits reads {FORMAT}", "run diff again"
            )
        return Trace.model_validate(raw), load_file(tensors)
    except (ValueError, ValidationError) as error:
        raise UserError(str(text), f"damaged: {error}", "run diff again") from error


def write_trace(folder: Path, trace: Trace, tensors: dict[str, torch.Tensor], number: int = 0) -> None:
    """Write one trace into an existing folder (artifact writers pass the same two things to `store.artifact.write`)."""
    from safetensors.torch import save_file

    text, data = (folder / name for name in names(number))
    save_file(tensors, data)
    text.write_text(trace.model_dump_json(), encoding="utf-8")
