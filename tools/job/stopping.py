"""How a worker is asked to end: an exception, so that sides are closed on the way out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

ASKED: list[int] = []
"""The signals that came."""


class Stopped(BaseException):
    """Raised by the handler, and by `check` where it was lost."""


def stop(number: int, _frame: FrameType | None) -> None:
    """Handler of SIGTERM and SIGINT."""
    ASKED.append(number)
    raise Stopped


def check() -> None:
    """Raise again what the handler raised where Python only prints exceptions (callbacks, finalizers); not while an
    exception is under way already.
    """
    if ASKED and sys.exc_info()[1] is None:
        raise Stopped
