"""What a run of `samebits rl` was asked: read back from its job folder when another goes on with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationError

from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import RlRequest

if TYPE_CHECKING:
    from pathlib import Path

    from samebits.tools.schema.experiment import Experiment

FREE = ("pool", "gate", "capture")
"""Sections that may change before a resume."""


def earlier_rl(folder: Path) -> RlRequest:
    """The request of a job folder.

    Raises:
        UserError: not a job of `samebits rl`.
    """
    try:
        return RlRequest.model_validate_json((folder / "request.json").read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        raise UserError(
            str(folder), f"no job of samebits rl ({error})", "give the job folder of the run to go on with"
        ) from error


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
