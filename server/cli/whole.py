"""Files that are written whole or not at all: a full disk leaves neither half a file nor an old one destroyed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, text: str) -> None:
    """Write beside it, then put it in its place.

    Raises:
        OSError: it cannot be written; what was there before is there still.
    """
    if path.exists() and not path.is_file():  # a pipe or /dev/stdout
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()  # a link stays one, as with an ordinary write
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
