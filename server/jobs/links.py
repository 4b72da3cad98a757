"""Jobs whose folder is elsewhere (`--out`): a link among the project's jobs lists them like the others."""

from __future__ import annotations

import secrets
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.server.jobs import hidden
from samebits.server.jobs.index import FILE, Index
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

JOBS = Path(".samebits/jobs")


@contextmanager
def listed(folder: Path, *, alone: bool = False) -> Iterator[None]:
    """Link a job folder that is about to be made into this project's jobs; an error in the body takes the link back.

    Args:
        folder: absolute, links followed.
        alone: the job must have its folder's name as its id (what it prints names it so), not one that was lengthened.

    Raises:
        UserError: `alone`, and another job has that name.
    """
    jobs = JOBS.resolve()
    link = None if folder.exists() or folder.parent == jobs else _link(jobs, folder, alone=alone)
    try:
        yield
    except BaseException:
        if link is not None and not (folder / "request.json").exists():
            link.unlink(missing_ok=True)
        raise


def of_path(jobs: Path, path: Path) -> str | None:
    """Id of the job whose folder this is."""
    if not (path.is_dir() and jobs.is_dir()):
        return None
    real = path.resolve()
    found = (job.name for job in jobs.iterdir() if job.name[0] != "." and job.resolve() == real)
    return next(found, None)


def _link(jobs: Path, folder: Path, *, alone: bool) -> Path | None:
    """The link; None where none can be written: such a job runs all the same."""
    name = folder.name.lstrip(".") or "job"
    with suppress(OSError):
        hidden.make(jobs)
        for named in (name, f"{name}-{secrets.token_hex(4)}"):
            link = jobs / named
            if link.is_symlink() and not link.exists():
                link.unlink()
                if (jobs / FILE).exists():
                    Index(jobs).close()  # its old entry goes, or its end would be taken for the new job's
            with suppress(FileExistsError):
                link.symlink_to(folder)
                return link
            if alone:
                raise UserError(str(folder), f"another job of this project is named {name!r}", "give another --out")
    return None
