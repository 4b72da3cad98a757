"""Whether an error says that the disk is full, whichever library it comes out of."""

from __future__ import annotations

import errno

WORDS = ("os error 28", "No space left on device")
"""safetensors, zip and others hand the system's error on as text."""


def is_full(error: BaseException) -> bool:
    """By the number of an OSError, else by its words."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno == errno.ENOSPC
    return any(word in str(error) for word in WORDS)
