"""What a job that did not succeed leaves: its record, the logs of its sides, and artifacts that are whole."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

KINDS = frozenset(("inspect", "measure", "capture", "diff", "minimize", "demo"))
"""Verbs whose folders hold nothing else of worth when they fail."""
WORKING = ("passes", "scores-", "readings", "weights-", "modules")
"""Folders of single passes: parts of an answer that was never given."""
RECORD = frozenset((".json", ".jsonl", ".txt", ".log", ""))
"""Suffixes of the files that say what was asked and how it ended."""
MANIFEST = "manifest.json"
"""Written last, and renamed into place with its folder: where it is, the artifact is whole."""


def tidy(folder: Path) -> None:
    """Remove what is half-made below the folder of a job of these verbs. Links are not followed."""
    try:
        kind = json.loads((folder / "request.json").read_bytes()).get("kind")
    except (OSError, ValueError, AttributeError):
        return
    if kind not in KINDS:
        return
    for path in list(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            _strip(path)
        elif path.suffix not in RECORD:
            path.unlink(missing_ok=True)


def _strip(folder: Path) -> None:
    """Keep logs and whole artifacts, and only folders that hold some."""
    if folder.name.endswith(".part") or folder.name.startswith(WORKING):
        shutil.rmtree(folder, ignore_errors=True)
        return
    if (folder / MANIFEST).is_file():
        return
    for path in list(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            _strip(path)
        elif path.suffix != ".log":
            path.unlink(missing_ok=True)
    with suppress(OSError):  # not empty: something is worth keeping
        folder.rmdir()
