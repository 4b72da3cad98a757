"""What a guard leaves on disk: lines of guard.jsonl, and the first batch that differed.

A disk that refuses hides no difference: the reason is handed back as text.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from samebits.tools.schema.artifacts.gap import GapStats
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LINES = "guard.jsonl"


class Line(GapStats):
    """One line of guard.jsonl: the figures of one batch."""

    time: float
    """Unix seconds."""
    call: int
    """From 1, counted by this Guard."""
    weight_version: int
    stored: str = ""
    """Where the batch was stored, when it was."""


@dataclass(slots=True, frozen=True)
class Stored:
    """The batch that lies on disk."""

    path: Path
    call: int
    weight_version: int
    ids: bool
    """It is a Rollout, from which `samebits diff --rollout` starts."""


def append(folder: Path, line: Line) -> str:
    """Write one line; why it could not be written, or "". What a killed run left of a line stays a line of its own."""
    try:
        with (folder / LINES).open("ab+") as file:
            if file.tell():
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(line.model_dump_json().encode() + b"\n")
    except OSError as error:
        return reason(error)
    return ""


def store(folder: Path, write: Callable[[Path], Path]) -> Path | str:
    """A new folder difference-N, filled by `write`: what that returns, or why there is none. All or nothing."""
    number = 1
    while os.path.lexists(made := folder / f"difference-{number}"):
        number += 1
    try:
        made.mkdir()
        return write(made)
    except Exception as error:  # whatever it is, the difference that was found must be told, not this
        shutil.rmtree(made, ignore_errors=True)
        return reason(error)


def reason(error: Exception) -> str:
    """In the words of the system where it has some."""
    if isinstance(error, UserError):
        return error.reason
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
