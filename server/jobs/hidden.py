"""Keeps `.samebits/` out of `git status`: jobs are hundreds of files, and samebits itself asks for commits."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = ".samebits"
IGNORE = ".gitignore"


def make(jobs: Path) -> None:
    """Make the folder of a project's jobs, hidden from git by a .gitignore of its own; one that is there stays.

    Raises:
        OSError: the folder cannot be made.
    """
    jobs.mkdir(parents=True, exist_ok=True)
    if jobs.parent.name != FOLDER:
        return  # --out elsewhere: that folder is the user's
    path = jobs.parent / IGNORE
    with suppress(OSError):
        file = path.open("x", encoding="utf-8")
        try:
            with file:
                file.write("*\n")
        except OSError:
            path.unlink()  # a full disk: the next job tries again
