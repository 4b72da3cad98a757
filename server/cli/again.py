"""A next step that names a verb, for the experiment of the command that is running: followed to the letter it must not
read another file.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

VERBS = re.compile(r"\bsamebits (inspect|measure|capture|diff|gate)\b")
_given: dict[str, list[str]] = {}
"""What this process was started with, as arguments, by option."""


def config(value: Path) -> Path:
    """Callback of --config: remembers it, unless it is the file that is read anyway."""
    _given["config"] = [] if value == Path() else ["--config", str(value)]
    return value


def sets(value: list[str] | None) -> list[str] | None:
    """Callback of --set: remembers them."""
    _given["sets"] = [word for one in value or () for word in ("--set", one)]
    return value


def same_experiment(text: str) -> str:
    """The text with this command's --config and --set behind every verb that reads an experiment."""
    more = shlex.join([*_given.get("config", ()), *_given.get("sets", ())])
    return VERBS.sub(lambda found: f"{found[0]} {more}", text) if more else text
