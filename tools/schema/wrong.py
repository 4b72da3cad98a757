"""What is wrong with a value, in plain words: no type names, no patterns, no links of pydantic's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

WANTED = {
    "missing": "is missing",
    "extra_forbidden": "unknown key",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be an object",
}
GOT_CHARS = 80


def in_words(error: ValidationError) -> str:
    """The first mistake, with the name of the value: "seconds: must be a number, got 'soon'"."""
    first = error.errors(include_url=False)[0]
    named = ".".join(str(part) for part in first["loc"])
    said = WANTED.get(first["type"])
    if said is None:
        said = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        said = said[0].lower() + said[1:]
    got = "" if first["type"] in ("missing", "extra_forbidden") else f", got {first['input']!r:.{GOT_CHARS}}"
    return f"{named}: {said}{got}" if named else said + got
