"""The tools about jobs: wait, list, read the end of a log, cancel."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from samebits.server.jobs import resume
from samebits.server.mcp import answers
from samebits.server.mcp.answers import Answer
from samebits.server.mcp.clean import LOG_CHARS, clean, tail
from samebits.server.mcp.verbs import LOOKS, Ctx, app_of
from samebits.tools.schema.results import Cell

if TYPE_CHECKING:
    from pathlib import Path

    from mcp.server import MCPServer

    from samebits.server.jobs.index import Row
    from samebits.server.mcp.context import App

LISTED = 20
LOG_BYTES = 1 << 20
Job = Annotated[str, Field(max_length=200)]


async def wait_job(
    ctx: Ctx,
    job: Annotated[str, Field(description="empty: list the jobs", max_length=200)] = "",
    seconds: Annotated[float, Field(ge=0, le=45)] = 40,
    log_lines: Annotated[int, Field(ge=0, le=500, description="last lines of its logs to return")] = 0,
    log_match: Annotated[str, Field(description="only lines holding this text", max_length=200)] = "",
    offset: Annotated[int, Field(ge=0, description="of the list")] = 0,
) -> Answer:
    """Wait for a job up to `seconds` (0: ask; at most 45), answer like the tool that began it. Without a job: list."""
    app = app_of(ctx)
    if not job:
        return listing(app, offset)
    app.known(job)
    await app.follow(ctx, job, min(seconds, app.patience_s))
    return app.answer(job, log_tail(app.pool.index.folder(job), log_lines, log_match) if log_lines else "")


async def cancel_job(ctx: Ctx, job: Job) -> Answer:
    """End a job and everything it started."""
    app = app_of(ctx)
    row = app.known(job)
    if row.is_ended:
        raise ToolError(
            f"job {row.id} has ended already ({row.state}). Next: wait_job(job={row.id!r}, seconds=0) gives its answer."
        )
    app.pool.cancel(job)
    await app.pool.wait(job, app.patience_s)
    row = app.known(job)
    if not row.is_ended:
        return Answer(
            job=job,
            state=row.state,
            summary="It was asked to end and is closing its sides.",
            next=f"wait_job(job={job!r})",
        )
    return Answer(
        job=job,
        state=row.state,
        summary=f"{row.kind} has ended: {row.state}.",
        next=answers.how_to_resume(row),
    )


def listing(app: App, offset: int) -> Answer:
    """Jobs, newest first."""
    app.pool.index.adopt()
    rows, total = app.pool.index.rows(limit=LISTED, offset=offset), app.pool.index.count()
    cells = [_line(row, app.pool.index.folder(row.id)) for row in rows]
    more = offset + len(rows) < total
    following = f"wait_job(offset={offset + len(rows)}) for older ones" if more else "wait_job(job=...) for one of them"
    return Answer(
        summary=f"{total} jobs are kept here.",
        rows=cells,
        total=total,
        truncated=more,
        next=following,
    )


def _line(row: Row, folder: Path) -> dict[str, Cell]:
    seconds = round((row.ended or row.started or row.created) - row.created)
    before = clean(resume.noted(folder), 80, lines=False)
    line: dict[str, Cell] = {"job": row.id, "state": row.state, "seconds": seconds}
    return line | ({"resumes": before} if before else {})


def log_tail(folder: Path, lines: int, match: str = "") -> str:
    """The last lines of a job's log and of its sides' logs, cleaned."""
    parts = []
    for path in [folder / "log.txt", *sorted((folder / "sides").glob("*.log")), *sorted(folder.glob("*.log"))]:
        text = read_end(path)
        kept = [line for line in re.split(r"\r\n|\n", text) if line.strip() and match in line][-lines:]
        if kept:
            parts.append(f"[{path.relative_to(folder)}]\n" + clean("\n".join(kept), 4 * LOG_CHARS))
    return tail("\n".join(parts), LOG_CHARS)


def read_end(path: Path) -> str:
    """The last MiB of a file as text; empty when it is not there."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LOG_BYTES))
            return file.read(LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""


def register(server: MCPServer[App], *, read_only: bool) -> None:
    """Add the tools."""
    server.add_tool(wait_job, title="Wait for a job, or list jobs", annotations=LOOKS)
    if not read_only:
        ends = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
        server.add_tool(cancel_job, title="Cancel a job", annotations=ends)
