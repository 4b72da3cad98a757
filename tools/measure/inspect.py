"""`samebits inspect`: what is installed here, and would this experiment run? Heavy imports happen in a child
process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, cast

from samebits.tools.schema.errors import UserError
from samebits.tools.schema.results import Result

if TYPE_CHECKING:
    from samebits.tools.job.job import Job
    from samebits.tools.schema.requests import InspectRequest
    from samebits.tools.schema.results import Cell

LIMIT_S = 300.0
"""A child that imports torch and vLLM for longer than this hangs."""


def run_inspect(request: InspectRequest, job: Job) -> Result:
    """Carry out an inspect request. Starts no engine and loads no weights.

    Raises:
        UserError: the child that looks cannot run.
    """
    from samebits.tools.sides.environment import variables

    config = request.experiment.rollout
    asked, answer = job.folder / "inspect.request.json", job.folder / "inspect.json"
    asked.write_text(request.experiment.model_dump_json(), encoding="utf-8")
    own = [] if request.foreign else ["own"]
    job.emit("inspect", "importing what the sides need, in a child process")
    with (job.folder / "inspect.log").open("wb") as log:
        try:
            code = subprocess.run(
                [sys.executable, "-m", "samebits.tools.measure.look", str(asked), str(answer), *own],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=variables(config, None) | dict(config.env),
                timeout=LIMIT_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
    if not answer.is_file():
        raise UserError(
            "inspect", f"the process that looks ended with code {code}", f"read the end of {job.folder / 'inspect.log'}"
        )
    rows = tuple(cast("list[dict[str, Cell]]", json.loads(answer.read_text(encoding="utf-8"))))
    return _result(rows)


def _result(rows: tuple[dict[str, Cell], ...]) -> Result:
    failing = [row for row in rows if row["outcome"] == "fails"]
    unseen = [row["check"] for row in rows if row["outcome"] == "not looked at"]
    if not failing and unseen:
        summary = f"Nothing that was looked at speaks against it; not looked at: {', '.join(map(str, unseen))}."
        return Result(verdict="unjudged", summary=summary, rows=rows, total=len(rows), next="samebits measure")
    if not failing:
        return Result(
            verdict="done", summary="This experiment can run here.", rows=rows, total=len(rows), next="samebits measure"
        )
    first = failing[0]
    summary = f"This experiment cannot run here: {len(failing)} checks fail, first {first['check']}: {first['detail']}"
    ordered = (*failing, *(row for row in rows if row["outcome"] != "fails"))
    return Result(verdict="unjudged", summary=summary, rows=ordered, total=len(rows), next=str(first["next"]))
