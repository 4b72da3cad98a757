"""`samebits gc`: removes old jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from samebits.server.jobs.gc import collect
from samebits.server.jobs.index import Index
from samebits.server.jobs.links import JOBS
from samebits.tools.schema.errors import UserError

DAY_S = 86400.0


def gc(
    older_than: Annotated[float | None, typer.Option(help="Days; ended jobs older than this go.", min=0)] = None,
    keep: Annotated[float | None, typer.Option(help="GiB; the oldest go until the rest fits.", min=0)] = None,
    needed_too: Annotated[
        bool, typer.Option("--needed-too", help="Also proposals that wait for a person, and inputs of jobs that stay.")
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="Only say what would go.")] = False,
) -> None:
    """Remove ended jobs of this project by age and size; what runs or waits stays, and what a job that stays needs."""
    if older_than is None and keep is None:
        raise UserError("samebits gc", "says neither how old nor how much", "for example --older-than 14 --keep 20")
    limits = None if older_than is None else older_than * DAY_S, None if keep is None else int(keep * 2**30)
    index = Index(JOBS.resolve())
    done = collect(index, older_than_s=limits[0], keep_bytes=limits[1], dry_run=dry_run, needed_too=needed_too)
    for job in done.removed:
        print(job)
    for job, why in done.spared.items():
        print(f"{job} stays: {why}")
    verb = "would be removed" if dry_run else "removed"
    freed, kept = done.freed_bytes / 2**20, done.kept_bytes / 2**20
    print(f"{len(done.removed)} jobs {verb} ({freed:.1f} MiB), {done.kept} kept ({kept:.1f} MiB)")
    if done.spared:
        print(f"{len(done.spared)} of them only because they are needed; --needed-too removes those, too")
