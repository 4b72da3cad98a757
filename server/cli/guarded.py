"""Runs a command: a user's mistake is one line on stderr (with --json also a failed outcome on stdout) and exit code 2,
and signals end it like Ctrl-C."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

INTERRUPTED = 130
"""What typer ends with at Ctrl-C."""
STOPPED = "stopped on request. Next: run the command again"


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
    except KeyboardInterrupt:
        _say(STOPPED)
    except SystemExit as ended:
        if ended.code != INTERRUPTED:
            raise
        _say(STOPPED)
    except UserError as error:
        _say(str(error))
    except ValidationError as error:
        from samebits.tools.schema.wrong import in_words

        verb = next(iter(sys.argv[1:]), "--help")
        named = "samebits" if verb.startswith("-") else f"samebits {verb}"
        _say(f"{in_words(error)}. Next: see `{named} --help`")


def _say(message: str) -> None:
    from samebits.server.cli import show

    if "--json" in sys.argv[1:]:
        show.refused(message)
    show.error_console.print(f"error: {message}", style="red", markup=False, highlight=False)
    sys.exit(2)
