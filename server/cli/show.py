"""How a job and its answer look in a terminal."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from samebits.server.cli import tables
from samebits.server.cli.again import same_experiment
from samebits.tools.schema.results import Cancelled, Failed, Succeeded, TimedOut

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from samebits.server.jobs.launch import Running
    from samebits.server.jobs.start import Submitted
    from samebits.tools.schema.results import Outcome, Result

POLL_S = 0.1
STYLE = {"equal": "bold green", "done": "bold", "differs": "bold yellow", "unjudged": "bold red"}
error_console = Console(stderr=True, soft_wrap=True)


@contextmanager
def deaf() -> Iterator[None]:
    """What ends a job is not stopped by a second Ctrl-C: it has its own time limit."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def follow(running: Running | Submitted, *, quiet: bool) -> Outcome:
    """Wait for a job, showing its progress on stderr; Ctrl-C ends the job and everything it started."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=error_console, transient=True, disable=quiet or not sys.stderr.isatty()
    ) as progress:
        bar = progress.add_task("starting", total=None)
        try:
            while True:
                outcome = running.outcome()
                for event in running.events():
                    progress.update(
                        bar, description=f"{event.phase}: {event.message}", completed=event.done or 0, total=event.total
                    )
                    if not quiet and not sys.stderr.isatty():
                        count = f" ({event.done}/{event.total})" if event.total else ""
                        error_console.print(f"{event.phase}: {event.message}{count}", markup=False, highlight=False)
                if outcome is not None:
                    return outcome
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            with deaf():
                running.stop()
            # It may have come to its end before the request did.
            ended = running.outcome()
            return ended if isinstance(ended, Succeeded) else Cancelled()


def finish(outcome: Outcome, running: Running | Submitted, *, as_json: bool) -> int:
    """Print the outcome; returns the exit code: 0 equal or done, 1 differs, 2 could not judge or run."""
    if isinstance(outcome, Succeeded):
        following = same_experiment(outcome.result.next)
        outcome = outcome.model_copy(update={"result": outcome.result.model_copy(update={"next": following})})
    if as_json:
        print(json.dumps(outcome.model_dump(mode="json") | {"job": str(running.folder)}, indent=1))
    elif isinstance(outcome, Succeeded):
        show_result(outcome.result)
        error_console.print(f"job folder: {running.folder}", markup=False, highlight=False)
    if isinstance(outcome, Succeeded):
        return outcome.result.exit_code
    if not as_json:
        error_console.print("error:", _reason(outcome, running), style="red", markup=False, highlight=False)
    return 2


def refused(message: str) -> None:
    """As JSON: a mistake that was found before a job was made, in the shape of a failed outcome; its job is ""."""
    print(json.dumps(Failed(error="user", message=message).model_dump(mode="json") | {"job": ""}, indent=1))


def _reason(outcome: Outcome, running: Running | Submitted) -> str:
    if isinstance(outcome, Failed):
        return outcome.message
    if isinstance(outcome, TimedOut):
        return f"the job was ended after {outcome.words}, or ask for less work{_mind(outcome.note)}"
    kept = f"{running.folder} keeps the record, the logs and what is whole"
    note = _mind(outcome.note if isinstance(outcome, Cancelled) else "")
    return f"stopped on request; {kept}. Next: {_again(running.folder)}{note}"


def _mind(note: str) -> str:
    return f". Mind: {note}" if note else ""


def _again(folder: Path) -> str:
    """What goes on with a stopped job: `samebits rl` has checkpoints, the others begin anew."""
    if next(folder.glob("*/lag-*/checkpoint.pt"), None) is not None:
        return f"samebits rl --resume {shlex.quote(str(folder))}"
    return "run the command again"


def show_result(result: Result) -> None:
    """Verdict, summary and table on stdout."""
    console = Console(soft_wrap=True)
    console.print(f"{result.verdict}: ", style=STYLE[result.verdict], end="")
    console.print(result.summary, markup=False, highlight=False)
    if result.rows:
        tables.show(result.rows, console)
    if result.truncated:
        console.print(f"{len(result.rows)} of {result.total} rows shown; all are in the artifact", style="dim")
    for name, path in result.ids.items():
        console.print(f"{name}: {path}", markup=False, highlight=False)
    if result.next:
        console.print(f"next: {result.next}", style="bold", markup=False, highlight=False)
    if result.closing:
        console.print(result.closing, style=STYLE[result.verdict], markup=False, highlight=False)
