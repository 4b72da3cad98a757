"""A job once more: its own request in a new folder, which says what it resumes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from pydantic import ValidationError

from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import REQUEST, GateRequest, RlRequest

if TYPE_CHECKING:
    from pathlib import Path

    from samebits.server.jobs.index import Row
    from samebits.tools.schema.requests import Request

FILE = "resumes"
"""In the folder of a job that resumes another: that one's id."""


def again(row: Row, folder: Path) -> Request:
    """The request that resumes an ended job. A gate takes over the verdicts there are, a loop goes on from its last
    checkpoint; every other verb begins anew.

    Raises:
        UserError: it has not ended, has its answer, or its request is damaged.
    """
    request = asked(folder)
    has_report = isinstance(request, GateRequest) and (folder / "gate" / "manifest.json").is_file()
    if not row.is_ended:
        raise UserError(f"job {row.id!r}", f"has not ended ({row.state})", "wait for it, or cancel it first")
    if row.state == "succeeded" and not has_report:
        raise UserError(f"job {row.id!r}", "has its answer", f"`samebits jobs wait {row.id}` shows it")
    real = str(folder.resolve())
    if has_report or (isinstance(request, RlRequest) and next(folder.glob("*/lag-*/checkpoint.pt"), None) is not None):
        return request.model_copy(update={"resume": real})
    return request


def asked(folder: Path) -> Request:
    """What a job was asked.

    Raises:
        UserError: its request is damaged, or of another version.
    """
    try:
        return REQUEST.validate_json((folder / "request.json").read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(str(folder), "its request cannot be read", "ask for it anew") from error


def note(folder: Path, job: str) -> None:
    """Write down what the job of this folder resumes."""
    with suppress(OSError):
        (folder / FILE).write_text(job, encoding="utf-8")


def noted(folder: Path) -> str:
    """The id of the job that this one resumes; "" for none."""
    with suppress(OSError, UnicodeDecodeError):
        return (folder / FILE).read_text(encoding="utf-8")
    return ""
