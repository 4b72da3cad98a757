"""Artifact folders: written whole or not at all, checked when read."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from samebits.tools.schema.errors import UserError
from samebits.tools.schema.stored import MANIFEST, M, identity, read, sha256
from samebits.tools.store.room import is_full

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import torch

__all__ = ["MANIFEST", "copy", "identity", "load_tensors", "read", "sha256", "write"]


def write(
    folder: Path,
    manifest: M,
    tensors: Mapping[str, Mapping[str, torch.Tensor]] | None = None,
    texts: Mapping[str, str] | None = None,
) -> M:
    """Write an artifact: safetensors files by name, text files by name, then the manifest. All or nothing.

    Returns:
        The manifest with `files` filled.

    Raises:
        UserError: the folder exists, or the disk refuses.
    """
    with _whole(folder) as part:
        for name, group in (tensors or {}).items():
            from safetensors.torch import save_file  # late: readers of manifests alone need no torch

            save_file({key: value.contiguous() for key, value in group.items()}, part / name)
        for name, text in (texts or {}).items():
            (part / name).write_text(text, encoding="utf-8")
        names = sorted(path.name for path in part.iterdir())
        whole = manifest.model_copy(update={"files": {name: sha256(part / name) for name in names}})
        (part / MANIFEST).write_text(whole.model_dump_json(indent=1), encoding="utf-8")
    return whole


def copy(source: Path, folder: Path) -> None:
    """Write an artifact once more, byte for byte: the same identity. All or nothing.

    Raises:
        UserError: the folder exists, or the disk refuses.
    """
    names = json.loads((source / MANIFEST).read_bytes())["files"]
    with _whole(folder) as part:
        for name in (*names, MANIFEST):
            shutil.copyfile(source / name, part / name)


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `folder` once it is full."""
    if folder.exists():
        raise UserError(str(folder), "this artifact exists already", "choose another folder or remove it")
    part = folder.with_name(folder.name + ".part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        yield part
        os.replace(part, folder)
    except Exception as error:
        shutil.rmtree(part, ignore_errors=True)
        if not isinstance(error, OSError) and not is_full(error):  # safetensors has an error of its own
            raise
        raise UserError(
            str(folder),
            f"cannot be written ({getattr(error, 'strerror', '') or error})",
            "free disk space or choose another run folder",
        ) from error


def load_tensors(folder: Path, name: str) -> dict[str, torch.Tensor]:
    """All tensors of one safetensors file of an artifact, on CPU."""
    from safetensors.torch import load_file

    tensors: dict[str, torch.Tensor] = load_file(folder / name)
    return tensors
