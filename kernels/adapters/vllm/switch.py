"""What switches samebits' operators on in vLLM. Imports neither torch nor vLLM.

    SAMEBITS_KERNELS=samebits, and the engine argument additional_config={"samebits_kernels": digest()}

vLLM keys its compile caches by its own environment and config, of which `additional_config` is part: the digest keeps a
graph that was compiled around other operators from coming out of the cache.
"""

from __future__ import annotations

import os
from typing import Any

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.proved import kernels_digest

VARIABLE = "SAMEBITS_KERNELS"
TABLE = "samebits"
KEY = "samebits_kernels"


def digest() -> str:
    """Names operators, tables and contract in 16 hex digits."""
    return kernels_digest()[:16]


def additional_config() -> dict[str, str]:
    """The engine argument of that name; may be merged with other keys."""
    return {KEY: digest()}


def asked() -> bool:
    """Whether this process's environment switches the operators on.

    Raises:
        PatchError: the variable names another table.
    """
    value = os.environ.get(VARIABLE, "")
    if value not in ("", TABLE):
        raise PatchError(f"{VARIABLE}={value}", "no table of operators for an engine", f"set it to {TABLE}, or unset it")
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
            "pass vllm.LLM(..., additional_config=samebits.kernels.adapters.vllm.switch.additional_config())",
        )
