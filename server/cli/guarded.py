"""Runs a command: a user's mistake is one line on stderr and exit code 2, and signals end it like Ctrl-C."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def run(command: Callable[[], object]) -> None:
    """Call it; exits 2 on a user's mistake."""
    from pydantic import ValidationError

    from samebits.tools.schema.errors import UserError

    # TERM (a closed terminal, a CI time-out) ends the job like Ctrl-C does: nothing is left running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the shell started it with INT ignored
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        command()
    except UserError as error:
        _say(f"error: {error}")
    except ValidationError as error:
        from samebits.tools.schema.wrong import in_words

        _say(f"error: {in_words(error)}. Next: see `samebits --help`")


def _say(text: str) -> None:
    from samebits.server.cli import show

    show.error_console.print(text, style="red", markup=False, highlight=False)
    sys.exit(2)
