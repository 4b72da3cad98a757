"""`samebits jobs`: the jobs of this project, whoever began them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs import resume as resuming
from samebits.server.jobs.index import Index, Row
from samebits.server.jobs.links import JOBS, of_path
from samebits.server.jobs.start import start
from samebits.server.pool.spool import Spool
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.results import Failed, Succeeded

POLL_S = 0.2
LOG_BYTES = 20_000
app = typer.Typer(help="List, wait for, read, cancel and resume jobs.", invoke_without_command=True)
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")]
Job = Annotated[str, typer.Argument(help="Job id, as `samebits jobs` lists it, or its folder.")]


def find(job: str) -> tuple[Index, Row]:
    """A job by id, or by its folder.

    Raises:
        UserError: there is none.
    """
    jobs = JOBS.resolve()
    index = Index(jobs) if jobs.is_dir() else None
    row = None
    if index is not None:
        row = index.get(job) if "/" not in job else None
        if row is None and (name := of_path(jobs, Path(job))) is not None:
            row = index.get(name)
    if index is None or row is None:
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
    index = Index(JOBS.resolve()) if JOBS.is_dir() else None  # a look makes no folder
    rows, total = (index.rows(limit=limit), index.count()) if index is not None else ([], 0)
    if as_json:
        print(json.dumps([_line(row, index.folder(row.id)) for row in rows if index is not None]))
        return
    lines = [("job", "state", "age", "doing")]
    for row in rows:
        assert index is not None
        lines.append((row.id, row.state, age(time.time() - row.created), doing(row, index.folder(row.id))))
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    console = Console(soft_wrap=True)
    for line in lines:
        # Lines, no table: a table breaks an id that the terminal (or a pipe's 80 columns) has no room for.
        text = "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[3]]).rstrip()
        console.print(text, markup=False, highlight=False, emoji=False)
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
        row = index.get(row.id) or row
    outcome = job_folder.outcome(index.folder(row.id)) if row.is_ended else None
    if as_json:
        answer = None if outcome is None else outcome.model_dump(mode="json")
        print(json.dumps({"job": row.id, "state": row.state, "outcome": answer}, indent=1))
    elif isinstance(outcome, Succeeded):
        show.show_result(outcome.result)
    else:
        said = f": {outcome.message}" if isinstance(outcome, Failed) else ""
        said += f". Next: `samebits jobs resume {row.id}`" if row.is_ended and not said else ""
        show.error_console.print(f"{row.kind} is {row.state}{said}", markup=False, highlight=False)
    raise typer.Exit(outcome.result.exit_code if isinstance(outcome, Succeeded) else 2)


@app.command()
def resume(
    job: Job,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Job folder to make.")] = None,
    as_json: Json = False,
) -> None:
    """Carry out once more, in a new folder, what a job was asked that was interrupted, failed, cancelled or timed out.
    A gate keeps its verdicts, a loop its checkpoints."""
    from samebits.server.cli import show
    from samebits.server.cli.common import job_folder as new_folder

    index, row = find(job)
    request = resuming.again(row, index.folder(row.id))
    folder = new_folder(request, out)
    running = start(request, folder)
    resuming.note(folder, row.id)
    outcome = show.follow(running, quiet=as_json)
    raise typer.Exit(show.finish(outcome, running, as_json=as_json))


@app.command()
def log(job: Job) -> None:
    """Print the end of a job's log."""
    index, row = find(job)
    path = index.folder(row.id) / "log.txt"
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
    job_folder.mark_cancelled(index.folder(row.id))
    Spool().withdraw(index.folder(row.id))
    until = time.monotonic() + 60
    while not (row := index.get(row.id) or row).is_ended and time.monotonic() < until:
        time.sleep(POLL_S)
    print(f"{row.id}: {row.state}")


def _line(row: Row, folder: Path) -> dict[str, object]:
    before = resuming.noted(folder)
    line: dict[str, object] = {"job": row.id, "kind": row.kind, "state": row.state, "created": row.created}
    return line | ({"resumes": before} if before else {})


def doing(row: Row, folder: Path) -> str:
    """What a job that has not ended is at."""
    if row.is_ended:
        return ""
    event, silent = job_folder.last_event(folder), job_folder.silent_s(folder)
    said = f"{event.phase}: {' '.join(event.message.split())}" if event else ""
    return said + (f" (no heartbeat for {silent:.0f} s)" if silent else "")


def age(seconds: float) -> str:
    """A duration in its largest whole unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
