"""`samebits jobs`: the jobs of this project, whoever began them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs.index import Index, Row
from samebits.server.pool.spool import Spool
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.results import Failed, Succeeded

JOBS = Path(".samebits/jobs")
POLL_S = 0.2
LOG_BYTES = 20_000
app = typer.Typer(help="List, wait for, read and cancel jobs.", invoke_without_command=True)
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")]
Job = Annotated[str, typer.Argument(help="Job id, as `samebits jobs` lists it.")]


def find(job: str) -> tuple[Index, Row]:
    """A job by id.

    Raises:
        UserError: there is none.
    """
    index = Index(JOBS.resolve())
    row = index.get(job) if "/" not in job else None
    if row is None:
        raise UserError(f"job {job!r}", "not among this project's jobs", "see `samebits jobs`")
    return index, row


@app.callback()
def listing(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    as_json: Json = False,
) -> None:
    """List the jobs of this project, newest first."""
    if context.invoked_subcommand is not None:
        return
    index = Index(JOBS.resolve())
    rows, total = index.rows(limit=limit), index.count()
    if as_json:
        print(json.dumps([{"job": r.id, "kind": r.kind, "state": r.state, "created": r.created} for r in rows]))
        return
    table = Table(box=None, pad_edge=False)
    for name in ("job", "state", "age", "doing"):
        table.add_column(name, overflow="fold")
    for row in rows:
        event = None if row.is_ended else job_folder.last_event(index.folder(row.id))
        doing = f"{event.phase}: {event.message}" if event else ""
        silent = 0.0 if row.is_ended else job_folder.silent_s(index.folder(row.id))
        doing += f" (no heartbeat for {silent:.0f} s)" if silent else ""
        table.add_row(row.id, row.state, age(time.time() - row.created), doing)
    Console(soft_wrap=True).print(table, markup=False, highlight=False)
    if total > len(rows):
        print(f"{len(rows)} of {total} jobs")


@app.command()
def wait(job: Job, seconds: Annotated[float, typer.Option(help="0: look.")] = 3600.0, as_json: Json = False) -> None:
    """Wait for a job and print its answer; exits as its verb would."""
    from samebits.server.cli import show

    index, row = find(job)
    until = time.monotonic() + seconds
    while not row.is_ended and time.monotonic() < until:
        time.sleep(POLL_S)
        row = index.get(job) or row
    outcome = job_folder.outcome(index.folder(job)) if row.is_ended else None
    if as_json:
        answer = None if outcome is None else outcome.model_dump(mode="json")
        print(json.dumps({"job": job, "state": row.state, "outcome": answer}, indent=1))
    elif isinstance(outcome, Succeeded):
        show.show_result(outcome.result)
    else:
        said = f": {outcome.message}" if isinstance(outcome, Failed) else ""
        show.error_console.print(f"{row.kind} is {row.state}{said}", markup=False, highlight=False)
    raise typer.Exit(outcome.result.exit_code if isinstance(outcome, Succeeded) else 2)


@app.command()
def log(job: Job) -> None:
    """Print the end of a job's log."""
    index, _ = find(job)
    path = index.folder(job) / "log.txt"
    data = path.read_bytes()[-LOG_BYTES:] if path.is_file() else b""
    Console(soft_wrap=True).print(data.decode(errors="replace"), markup=False, highlight=False, end="")


@app.command()
def cancel(job: Job) -> None:
    """End a job and everything it started."""
    index, row = find(job)
    if row.is_ended:
        raise UserError(
            f"job {job!r}", f"has ended already ({row.state})", f"`samebits jobs wait {job}` shows its answer"
        )
    job_folder.mark_cancelled(index.folder(job))
    Spool().withdraw(index.folder(job))
    until = time.monotonic() + 60
    while not (row := index.get(job) or row).is_ended and time.monotonic() < until:
        time.sleep(POLL_S)
    print(f"{job}: {row.state}")


def age(seconds: float) -> str:
    """A duration in its largest whole unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
