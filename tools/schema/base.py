"""The base of every model that crosses a process or file border."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1
"""Version of every artifact schema that does not name its own; an artifact of another version is refused, never guessed
at."""


class Model(BaseModel):
    """Frozen, closed, documented by the strings under its fields. NaN and infinities are written as strings, not as
    null."""

    # Not use_attribute_docstrings: it parses every source file again at import, 0.15 s of each command's start.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
