"""`samebits gate --compare OLD NEW`: two stored reports of the gate, as a table and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from samebits.server.cli import show, whole
from samebits.tools.report import gate_compare
from samebits.tools.schema import stored
from samebits.tools.schema.artifacts.regression import RegressionReport
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.results import Result

if TYPE_CHECKING:
    from samebits.tools.schema.results import Cell


def show_both(old: Path, new: Path, page: Path, *, as_json: bool) -> int:
    """Write the page and print what changed; exits 1 when an axis is red now or no longer proved.

    Raises:
        UserError: no report of this schema version there, or the page cannot be written.
    """
    reports = [stored.read(_folder(path), RegressionReport) for path in (old, new)]
    rows = gate_compare.compared(*reports)
    try:
        whole.write(page, gate_compare.page(reports[0], reports[1], (str(old), str(new))))
    except OSError as error:
        raise UserError(str(page), f"cannot be written ({error.strerror})", "name a file with --out") from error
    red, lost, changes = gate_compare.red(reports[1]), gate_compare.worse(rows), gate_compare.changes(*reports)
    table: list[dict[str, Cell]] = [
        {
            "axis": row.name,
            "before": row.old.words if row.old else "",
            "now": row.new.words if row.new else "",
            "differ": row.new.differ if row.new else "",
            "change": row.change,
        }
        for row in rows
    ]
    said = [f"red: {', '.join(red)}"] if red else []
    said += [f"no longer proved: {', '.join(lost)}"] if lost else []
    summary = "; ".join(said) or "nothing got worse"
    summary += f"; not the same: {', '.join(name for name, _, _ in changes)}" if changes else "; nothing else changed"
    result = Result(
        verdict="differs" if red or lost else "done",
        summary=summary,
        ids={"page": str(page)},
        rows=tuple(table),
        total=len(table),
    )
    if as_json:
        print(result.model_dump_json(indent=1))
    else:
        show.show_result(result)
    return result.exit_code


def _folder(path: Path) -> Path:
    """A report's folder, or the job folder that holds it."""
    return path / "gate" if (path / "gate").is_dir() else path
