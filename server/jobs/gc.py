"""Collects old jobs: by age, then by size, oldest first. Jobs that have not ended are never touched."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from samebits.server.jobs import folder as job_folder

if TYPE_CHECKING:
    from samebits.server.jobs.index import Index, Row


@dataclass(frozen=True, slots=True)
class Collected:
    """What was (or would be) removed and what stays."""

    removed: tuple[str, ...]
    freed_bytes: int
    kept: int
    kept_bytes: int


def collect(index: Index, *, older_than_s: float | None, keep_bytes: int | None, dry_run: bool = False) -> Collected:
    """Remove ended jobs older than `older_than_s`, then the oldest until `keep_bytes` hold the rest. Folders that were
    named with --out are their maker's: they stay.
    """
    index.adopt()
    for grave in index.root.glob(".removed-*"):
        shutil.rmtree(grave, ignore_errors=True)
    rows = [
        row for row in index.rows(limit=index.count() or 1) if row.is_ended and not index.folder(row.id).is_symlink()
    ]
    rows.sort(key=lambda row: row.ended or row.created)
    sizes = {row.id: job_folder.size_bytes(index.folder(row.id)) for row in rows}
    total, now = sum(sizes.values()), time.time()
    doomed: list[Row] = []
    for row in rows:
        old = older_than_s is not None and now - (row.ended or row.created) > older_than_s
        if old or (keep_bytes is not None and total > keep_bytes):
            doomed.append(row)
            total -= sizes[row.id]
    for row in doomed if not dry_run else ():
        # Renamed first: a folder half removed is never taken for a job.
        grave = index.folder(row.id).with_name(f".removed-{row.id}")
        index.folder(row.id).replace(grave)
        index.forget(row.id)
        shutil.rmtree(grave, ignore_errors=True)
    freed = sum(sizes[row.id] for row in doomed)
    return Collected(tuple(row.id for row in doomed), freed, len(rows) - len(doomed), total)
