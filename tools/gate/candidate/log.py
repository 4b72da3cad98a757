"""What a candidate and its compiler print, bounded in two files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.tools.job.log import Log

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_BYTES = 1 << 20


def bounded(path: Path) -> Log:
    """The log at this path."""
    return Log(path, LIMIT_BYTES)


def read(path: Path) -> str:
    """Both files, the older first."""
    found = [p.read_text(encoding="utf-8", errors="replace") for p in (path.with_suffix(".1.txt"), path) if p.is_file()]
    return "".join(found)
