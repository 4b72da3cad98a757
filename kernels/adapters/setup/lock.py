"""A samebits.lock as the adapters read it: of this version, whole, and proving something, or refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebits.kernels.adapters.errors import PatchError

SCHEMA_VERSION = 1
"""That of tools/schema, which nothing under kernels imports."""
AGAIN = "run samebits gate again"
Texts = Mapping[str, str]


@dataclass(slots=True, frozen=True)
class Lock:
    """What is compared. Sections by role: "rollout", "trainer"."""

    axes: frozenset[str]
    proved: Mapping[str, Texts]
    settings: Mapping[str, Texts]
    engine_sets: Texts


def read(path: Path) -> Lock:
    """The lock in a file.

    Raises:
        PatchError: it cannot be read, is damaged, of another version, or proves nothing.
    """
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PatchError(str(path), f"cannot be read ({error.strerror or error})", AGAIN) from error
    except (ValueError, RecursionError) as error:
        raise PatchError(str(path), "no lock of this version of samebits: its text is no JSON", AGAIN) from error
    if not isinstance(held, dict) or not {"schema_version", "axes", "proved", "settings"} <= set(held):
        raise PatchError(str(path), "no lock of this version of samebits", AGAIN)
    version = held["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        raise PatchError(str(path), f"schema_version {version!r}, this samebits reads {SCHEMA_VERSION}", AGAIN)
    axes, sets = held["axes"], held.get("engine_sets", {})
    if not (_sections(held["proved"]) and _sections(held["settings"]) and _texts(sets) and isinstance(axes, dict)):
        raise PatchError(str(path), "no lock of this version of samebits: a section has another form", AGAIN)
    if not axes:
        raise PatchError(str(path), "proves nothing: it names no axis", AGAIN)
    return Lock(frozenset(axes), held["proved"], held["settings"], sets)


def _sections(value: Any) -> bool:
    return isinstance(value, dict) and all(_texts(section) for section in value.values())


def _texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
