"""What a run of `samebits rl` was asked: read back from its job folder when another goes on with it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import RlRequest

if TYPE_CHECKING:
    from pathlib import Path

    from samebits.tools.schema.experiment import Experiment

FREE = ("pool", "gate", "capture")
"""Sections that may change before a resume."""
NEXT = "give the job folder of the run to go on with"


def earlier_rl(folder: Path) -> RlRequest:
    """The request of a job folder.

    Raises:
        UserError: not a job of `samebits rl`.
    """
    try:
        return RlRequest.model_validate_json((folder / "request.json").read_text(encoding="utf-8"))
    except OSError as error:
        why = "no such folder" if not folder.is_dir() else f"its request.json cannot be read: {error.strerror}"
        raise UserError(str(folder), f"no job of samebits rl ({why})", NEXT) from error
    except ValueError as error:
        raise UserError(str(folder), f"no job of samebits rl ({_kind(folder)})", NEXT) from error


def _kind(folder: Path) -> str:
    """What a request that is none of `samebits rl` is."""
    try:
        kind = str(json.loads((folder / "request.json").read_text(encoding="utf-8"))["kind"])
    except (ValueError, KeyError, TypeError):
        return "its request.json holds no request"
    return "its settings are of another version of samebits" if kind == "rl" else f"a job of samebits {kind}"


def different(before: Experiment, now: Experiment) -> tuple[str, object, object] | None:
    """The first setting of the loop that is not the same, as (key, value before, value now); None: all are."""
    old, new = before.model_dump(mode="json"), now.model_dump(mode="json")
    for section in old:
        if section in FREE or old[section] == new[section]:
            continue
        if not isinstance(old[section], dict):
            return section, old[section], new[section]
        key = next(key for key in old[section] if old[section][key] != new[section][key])
        return f"{section}.{key}", old[section][key], new[section][key]
    return None
