"""What switches samebits' operators on in vLLM. Imports neither torch nor vLLM.

    SAMEBITS_KERNELS=samebits

vLLM keys its compile caches by its own environment and config, of which `additional_config` is part: the plugin puts
the digest of the operators there, so no graph that was compiled around others can come out of the cache.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any

from samebits.kernels.adapters.errors import PatchError

VARIABLE = "SAMEBITS_KERNELS"
TABLE = "samebits"
KEY = "samebits_kernels"
ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ("contract_version.py", "ops", "adapters/vllm", "adapters/tables/rotary_table.py")


@cache
def digest() -> str:
    """Names operators, tables and contract in 16 hex digits: the sources of what is put into the engine."""
    found = hashlib.sha256()
    for name in SOURCES:
        place = ROOT / name
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.suffix in (".py", ".json"):
                found.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def with_key(given: Any) -> dict[str, Any]:
    """The engine argument `additional_config` with the digest of the operators.

    Raises:
        PatchError: it is no mapping.
    """
    if not isinstance(given, dict):
        raise PatchError(
            f"additional_config = {given!r}", "cannot take samebits' key", "pass a mapping, or leave it out"
        )
    return given | {KEY: digest()}


def asked() -> bool:
    """Whether this process's environment switches the operators on.

    Raises:
        PatchError: the variable names another table.
    """
    value = os.environ.get(VARIABLE, "")
    if value not in ("", TABLE):
        raise PatchError(
            f"{VARIABLE}={value}", "no table of operators for an engine", f"set it to {TABLE}, or unset it"
        )
    return value == TABLE


def check_key(given: Any) -> None:
    """The running engine's `additional_config` names these operators.

    Raises:
        PatchError: the digest is missing, or is that of other sources.
    """
    found = given.get(KEY) if isinstance(given, dict) else None
    if found != digest():
        raise PatchError(
            f"additional_config = {given!r}",
            f"does not hold {KEY!r}: {digest()!r}, so a graph compiled around other operators could be taken",
            f"set {VARIABLE}={TABLE} in the process that makes the engine, with samebits installed there",
        )
