"""Is this a whole Hugging Face causal LM folder? Checked before any library reads it, so that the answer is one
sentence.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

from samebits.tools.schema.errors import UserError

AGAIN = "copy the folder again, or give another one"
PIECES = 64
PIECE = 4096
"""Bytes of each piece of a weight file that goes into the sample."""


def check_model_folder(model: str) -> Path:
    """The folder, when it holds config.json and whole weights.

    Raises:
        UserError: missing folder, config.json or weights, a shard that the index names and is not there or lies
            elsewhere, a truncated or damaged safetensors file.
    """
    if not model:
        raise UserError("model", "not set", "set `model` in [rollout] or [trainer] of samebits.toml to a model folder")
    folder = Path(model).expanduser()
    if not folder.is_dir():
        raise UserError(str(folder), "no such folder", "give a local model folder; samebits downloads nothing")
    _json(folder / "config.json", "a model folder has one")
    for name in _weight_files(folder):
        path = folder / name
        if not path.is_file():
            raise UserError(str(path), "missing, though model.safetensors.index.json names it", AGAIN)
        if path.suffix == ".safetensors":
            check_safetensors(path)
    return folder


def read_config(model: str | Path) -> dict[str, Any]:
    """config.json; empty when there is none to read (`check_model_folder` says why)."""
    if not model:
        return {}
    try:
        values = json.loads((Path(model).expanduser() / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def sample_digest(model: str | Path) -> str:
    """A sha256 over config.json and over 64 pieces of each weight file: tells two models apart without reading all of
    them; "" where there is no model folder. Equal digests do not prove equal weights.
    """
    folder = Path(model).expanduser()
    total = hashlib.sha256()
    try:
        total.update((folder / "config.json").read_bytes())
        for name in _weight_files(folder):
            size = (folder / name).stat().st_size
            total.update(f"{name} {size}".encode())
            with (folder / name).open("rb") as file:
                for k in range(PIECES):
                    file.seek(k * max(0, size - PIECE) // (PIECES - 1))
                    total.update(file.read(PIECE))
    except (OSError, UserError):
        return ""
    return total.hexdigest()


def _weight_files(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = _json(index, "the list of shards").get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise UserError(str(index), "no weight_map in it", AGAIN)
        names = sorted({str(name) for name in weight_map.values()})
        for name in names:
            if Path(name).is_absolute() or any(part.startswith(".") for part in Path(name).parts):
                raise UserError(str(index), f"names a shard outside the folder, or hidden: {name!r}", AGAIN)
        return names
    names = sorted(path.name for pattern in ("*.safetensors", "pytorch_model*.bin") for path in folder.glob(pattern))
    if not names:
        raise UserError(
            str(folder), "no weights (no *.safetensors)", "put the weights next to config.json, or give another folder"
        )
    return names


def _json(path: Path, what: str) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(str(path), f"missing; {what}", "give the folder that holds config.json and the weights")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UserError(str(path), f"not readable JSON ({error})", AGAIN) from error
    if not isinstance(value, dict):
        raise UserError(str(path), "not a JSON object", AGAIN)
    return value


def check_safetensors(path: Path) -> None:
    """Compare a safetensors file's length with what its header promises, without reading the tensors.

    Raises:
        UserError: truncated or damaged; names the first tensor that is cut off.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else size + 1
        if 8 + length > size:
            raise UserError(str(path), f"truncated: {size} bytes, its header alone needs more", AGAIN)
        try:
            header = json.loads(file.read(length))
            ends = {name: int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(str(path), "damaged: its header is not that of a safetensors file", AGAIN) from error
    cut = sorted((end, name) for name, end in ends.items() if 8 + length + end > size)
    if cut:
        raise UserError(
            str(path), f"truncated: {len(cut)} of {len(ends)} tensors are cut off, first {cut[0][1]}", AGAIN
        )
