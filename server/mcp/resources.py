"""Job logs and artifacts as resources, by pages of PAGE_CHARS characters."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mcp.server.mcpserver.exceptions import ResourceError
from mcp.types import Resource

from samebits.server.mcp.clean import clean
from samebits.server.mcp.verbs import Ctx, app_of

if TYPE_CHECKING:
    from pathlib import Path

    from mcp.server import MCPServer

    from samebits.server.mcp.context import App

PAGE_CHARS = 20_000
LONGEST = 3
"""Bytes of a UTF-8 character after its first."""
TEXT = frozenset((".json", ".jsonl", ".txt", ".log", ".md", ".py", ".toml", ".csv", ".html", ".svg", ".part", ""))
LISTED = 500
NEWEST = 20
"""Jobs in the list of resources."""


def place(app: App, job: str, rest: str) -> Path:
    """A file or folder of a job.

    Raises:
        ResourceError: no such job or file, or it leaves the job's folder.
    """
    if app.row(job) is None:
        raise ResourceError(f"no job {clean(job, 100, lines=False)!r}. Next: wait_job() lists the jobs there are.")
    folder = app.pool.index.folder(job).resolve()
    path = (folder / rest).resolve()
    if folder not in [path, *path.parents]:
        raise ResourceError("that path leaves the job's folder. Next: read job://JOB/files for what it holds.")
    if not path.exists():
        raise ResourceError(f"job {job} holds no {clean(rest, 200, lines=False)!r}. Next: read job://{job}/files.")
    return path


def page_of(path: Path, page: int) -> str:
    """One page of a text file, from 1, with a line that says where it stands.

    Raises:
        ResourceError: not text, or no such page.
    """
    size = path.stat().st_size
    if size == 0:
        return f"{path.name} is empty: nothing was written."
    if path.suffix not in TEXT:
        raise ResourceError(
            f"{path.name} holds no text ({size} bytes). Next: open it on the machine, or read its manifest.json."
        )
    pages = max(1, -(-size // PAGE_CHARS))
    if not 1 <= page <= pages:
        raise ResourceError(f"{path.name} has pages 1 to {pages}. Next: ask for one of them.")
    with path.open("rb") as file:
        file.seek((page - 1) * PAGE_CHARS)
        data = file.read(PAGE_CHARS + LONGEST)
    # A character belongs to the page on which it begins.
    first = _continued(data, 0) if page > 1 else 0
    data = data[first : _continued(data, PAGE_CHARS)]
    head = f"[untrusted file content, page {page} of {pages}]\n"
    return head + clean(data.decode(errors="replace"), PAGE_CHARS + LONGEST)


def _continued(data: bytes, start: int) -> int:
    """Where, from `start` on, the next character of UTF-8 begins."""
    end = start
    while end < min(len(data), start + LONGEST) and data[end] & 0xC0 == 0x80:
        end += 1
    return end


async def job_log(ctx: Ctx, job: str) -> str:
    """The last page of a job's own log."""
    path = place(app_of(ctx), job, "log.txt")
    return page_of(path, max(1, -(-path.stat().st_size // PAGE_CHARS)))


async def job_log_page(ctx: Ctx, job: str, page: int) -> str:
    """A page of a job's own log, from 1."""
    return page_of(place(app_of(ctx), job, "log.txt"), page)


async def job_files(ctx: Ctx, job: str) -> str:
    """The first files of a job: size in bytes and path."""
    return files_of(place(app_of(ctx), job, "."), job, 1)


async def job_files_page(ctx: Ctx, job: str, page: int) -> str:
    """A page of the files of a job, from 1."""
    return files_of(place(app_of(ctx), job, "."), job, page)


def files_of(folder: Path, job: str, page: int) -> str:
    """So many files from a folder's list, and where the rest is.

    Raises:
        ResourceError: no such page.
    """
    lines = []
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(where, name)
            lines.append(f"{os.lstat(path).st_size}\t{clean(os.path.relpath(path, folder), 400, lines=False)}")
    pages = max(1, -(-len(lines) // LISTED))
    if not 1 <= page <= pages:
        raise ResourceError(f"the files of {job} have pages 1 to {pages}. Next: ask for one of them.")
    left = len(lines) - page * LISTED
    rest = [f"[{left} more: job://{job}/files/{page + 1}]"] if left > 0 else []
    return "\n".join(lines[(page - 1) * LISTED : page * LISTED] + rest)


def newest(app: App) -> list[Resource]:
    """Log and files of the newest jobs, to be listed. What else there is has templates."""
    app.pool.index.adopt()
    found = []
    for row in app.pool.index.rows(limit=NEWEST):
        if app.row(row.id) is None:
            continue
        kinds = [("files", "Files")]
        if (app.pool.index.folder(row.id) / "log.txt").is_file():
            kinds.insert(0, ("log", "End of the log"))
        for name, title in kinds:
            found.append(
                Resource(
                    uri=f"job://{row.id}/{name}",
                    name=f"{row.id} {name}",
                    title=f"{title} of {row.kind}, {row.state}",
                    mime_type="text/plain",
                )
            )
    return found


async def job_file(ctx: Ctx, job: str, path: str) -> str:
    """The first page of a text file of a job."""
    return page_of(place(app_of(ctx), job, path), 1)


async def job_file_page(ctx: Ctx, job: str, page: int, path: str) -> str:
    """A page of a text file of a job, from 1."""
    return page_of(place(app_of(ctx), job, path), page)


def register(server: MCPServer[App]) -> None:
    """Add the templates; `newest` is the list."""
    for uri, function, title in (
        ("job://{job}/log", job_log, "End of a job's log"),
        ("job://{job}/log/{page}", job_log_page, "Page of a job's log"),
        ("job://{job}/files", job_files, "Files of a job"),
        ("job://{job}/files/{page}", job_files_page, "Page of the files of a job"),
        ("job://{job}/file/{+path}", job_file, "File of a job"),
        ("job://{job}/page/{page}/{+path}", job_file_page, "Page of a file of a job"),
    ):
        server.resource(uri, title=title, mime_type="text/plain")(function)
