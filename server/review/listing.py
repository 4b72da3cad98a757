"""The proposals of a project, found in its job folders."""

from __future__ import annotations

from pathlib import Path

from samebits.server.jobs.links import of_path
from samebits.tools.report.review import Entry, stamp, state_of
from samebits.tools.schema import reviews
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.proposals import open_proposal

NAME = "proposal"
LISTED = 100


def folder_of(jobs: Path, name: str) -> Path:
    """The folder of a proposal named JOB/proposal, or JOB, below the jobs.

    Raises:
        UserError: no such one.
    """
    job, _, rest = name.strip("/").partition("/")
    path = jobs / job / (rest or NAME)
    plain = job and job[0] != "." and rest in ("", NAME)
    if not plain or path.is_symlink() or not (path / "manifest.json").is_file():
        raise UserError(
            f"proposal {name[:100]!r}", "not among this project's jobs", "see the list of `samebits review`"
        )
    return path


def id_of(jobs: Path, given: str) -> str:
    """The name of a proposal that may be given as the path of its folder or its job's; else as it was given."""
    path = Path(given)
    if not path.is_absolute() and (jobs / given).exists():
        return given
    if (path / "manifest.json").is_file() and path.resolve().name == NAME:
        path = path.resolve().parent
    job = of_path(jobs, path)
    return f"{job}/{NAME}" if job else given


def proposals(jobs: Path) -> list[Entry]:
    """Newest first; what is damaged is listed with its reason."""
    found = [path.parent for path in jobs.glob(f"*/{NAME}/manifest.json") if path.parent.parent.name[0] != "."]
    found.sort(key=lambda path: ((path / "manifest.json").stat().st_mtime_ns, path.parent.name), reverse=True)
    return [_entry(path) for path in found[:LISTED]]


def _entry(path: Path) -> Entry:
    name = f"{path.parent.name}/{NAME}"
    try:
        proposal = open_proposal(path)
        review = reviews.find(proposal)
    except UserError as error:
        return Entry(name, "waiting", name, "", problem=str(error))
    manifest = proposal.manifest
    return Entry(
        name,
        state_of(review),
        f"{manifest.candidate} for {manifest.operator}",
        f"{stamp(manifest.created)}, on {manifest.base[:12]}, {name}",
    )
