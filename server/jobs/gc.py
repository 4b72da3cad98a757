"""Collects old jobs: by age, then by size, oldest first. Spared are jobs that have not ended, proposals that wait for a
person or to be applied, and what a job that stays was made from.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from samebits.server.jobs import folder as job_folder
from samebits.tools.schema import reviews

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from samebits.server.jobs.index import Index, Row

WAITS = "its proposal waits for a person's decision"
APPROVED = "its proposal is approved and not yet applied"
MAKING_S = 3600.0
"""A folder without a request, this old, is what a full disk left of a job, and none that is being made."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What was (or would be) removed and what stays."""

    removed: tuple[str, ...]
    freed_bytes: int
    kept: int
    kept_bytes: int
    spared: dict[str, str]
    """Jobs that age or size would have removed, and why they stay."""


def collect(
    index: Index,
    *,
    older_than_s: float | None,
    keep_bytes: int | None,
    dry_run: bool = False,
    needed_too: bool = False,
) -> Collected:
    """Remove ended jobs older than `older_than_s`, then the oldest until `keep_bytes` hold the rest. Folders that were
    named with --out are their maker's: they stay.

    Args:
        needed_too: also proposals that wait for a person or to be applied, and what a job that stays was made from.
    """
    index.adopt()
    for grave in index.root.glob(".removed-*"):
        shutil.rmtree(grave, ignore_errors=True)
    every = index.every()
    rows = [row for row in every if row.is_ended and not index.folder(row.id).is_symlink()]
    rows.sort(key=lambda row: row.ended or row.created)
    sizes = {row.id: job_folder.size_bytes(index.folder(row.id)) for row in rows}
    total, now = sum(sizes.values()), time.time()
    doomed: list[str] = []
    for row in rows:
        old = older_than_s is not None and now - (row.ended or row.created) > older_than_s
        if old or (keep_bytes is not None and total > keep_bytes):
            doomed.append(row.id)
            total -= sizes[row.id]
    spared = {} if needed_too else _spared(index, every, doomed)
    removed = [job for job in doomed if job not in spared]
    for job in removed if not dry_run else ():
        # Renamed first: a folder half removed is never taken for a job.
        grave = index.folder(job).with_name(f".removed-{job}")
        index.folder(job).replace(grave)
        shutil.rmtree(grave, ignore_errors=True)
        index.forget(job)
    left = [*_unmade(index.root, now)] if not dry_run else []
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)
    freed = sum(sizes[job] for job in removed)
    return Collected(tuple(removed), freed, len(rows) - len(removed), sum(sizes.values()) - freed, spared)


def _spared(index: Index, every: list[Row], doomed: list[str]) -> dict[str, str]:
    """Of these jobs, those that must stay, and why."""
    applied = [row.id for row in every if row.kind == "apply" and row.state == "succeeded"]
    used = set().union(*(_inputs(index.folder(job), index.root) for job in applied))
    spared = {job: why for job in doomed if (why := _waits(index.folder(job), job in used))}
    staying = [row.id for row in every if row.id not in doomed] + list(spared)
    while staying:
        job = staying.pop()
        for made_from in sorted(_inputs(index.folder(job), index.root)):
            if made_from in doomed and made_from not in spared:
                spared[made_from] = f"{job} was made from it"
                staying.append(made_from)
    return spared


def _waits(folder: Path, is_applied: bool) -> str:
    """What the proposal that it holds, if any, waits for; empty: nothing."""
    for manifest in folder.glob("*/manifest.json"):
        with suppress(OSError, ValueError, AttributeError):
            data = manifest.read_bytes()
            if json.loads(data).get("kind") != "proposal":
                continue
            decision = reviews.place(hashlib.sha256(data).hexdigest())
            if not decision.exists():
                return WAITS
            approved = json.loads(decision.read_bytes()).get("decision") == "approved"
            return APPROVED if approved and not is_applied else ""
    return ""


def _inputs(folder: Path, root: Path) -> set[str]:
    """Jobs whose files a job's request names."""
    try:
        asked = json.loads((folder / "request.json").read_bytes())
    except (OSError, ValueError):
        return set()
    start = f"{root}/"
    return {text.removeprefix(start).partition("/")[0] for text in _texts(asked) if text.startswith(start)}


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict | list):
        for each in node.values() if isinstance(node, dict) else node:
            yield from _texts(each)


def _unmade(root: Path, now: float) -> Iterator[Path]:
    """Folders that never became a job."""
    for path in root.iterdir():
        with suppress(OSError):
            if (
                path.name[0] != "."
                and path.is_dir()
                and not path.is_symlink()
                and not (path / "request.json").exists()
                and now - path.stat().st_mtime > MAKING_S
            ):
                yield path
