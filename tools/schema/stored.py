"""Reading artifact folders: the manifest and the digest of every file, checked. No torch."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from samebits.tools.schema.artifacts.base import Manifest
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

M = TypeVar("M", bound=Manifest)
MANIFEST = "manifest.json"


def sha256(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def read(folder: Path, kind: type[M], *, check: bool = True) -> M:
    """Read and check an artifact's manifest (and, with `check`, the digest of each of its files).

    Raises:
        UserError: missing, of another kind or schema version, or damaged.
    """
    path = folder / MANIFEST
    expected, version = (kind.model_fields[name].default for name in ("kind", "schema_version"))
    if not path.is_file():
        raise UserError(
            str(folder), f"no {expected} artifact here (no {MANIFEST})", "give the folder that a verb printed"
        )
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(str(path), f"damaged: {error}", "make the artifact again") from error
    if raw.get("schema_version") != version:
        raise UserError(
            str(folder),
            f"schema version {raw.get('schema_version')}, this samebits reads {version}",
            "make the artifact again with this version",
        )
    if raw.get("kind") != expected:
        raise UserError(
            str(folder), f"a {raw.get('kind')} artifact, not a {expected}", f"give the folder of a {expected}"
        )
    try:
        manifest = kind.model_validate(raw)
    except ValidationError as error:
        raise UserError(str(path), f"damaged: {error.errors()[0]['msg']}", "make the artifact again") from error
    if check:
        for name, digest in manifest.files.items():
            if not (folder / name).is_file() or sha256(folder / name) != digest:
                raise UserError(
                    str(folder / name), "damaged: its bytes are not those the manifest names", "make the artifact again"
                )
    return manifest


def identity(folder: Path) -> str:
    """sha256 of the manifest: what `made_from` of later artifacts holds."""
    return sha256(folder / MANIFEST)
