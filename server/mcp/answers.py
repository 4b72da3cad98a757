"""The flat answer of every tool, cleaned and kept short enough to be read."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, ConfigDict, WithJsonSchema

from samebits.server.jobs import folder as job_folder
from samebits.server.jobs import resume
from samebits.server.jobs.folder import State
from samebits.server.mcp.clean import CELL_CHARS, SUMMARY_CHARS, clean, quoted
from samebits.tools.schema.results import Cancelled, Cell, Failed, Succeeded, TimedOut

if TYPE_CHECKING:
    from samebits.server.jobs.index import Row
    from samebits.tools.schema.results import Outcome, Result

ANSWER_CHARS = 20_000
ROWS = 60
OPTION = re.compile(r" --([a-z][a-z-]*)[ =]")
CELL_SCHEMA = {"type": ["string", "number", "boolean", "null"]}
ROWS_SCHEMA = {"type": "array", "items": {"type": "object", "additionalProperties": CELL_SCHEMA}}
"""As pydantic would write it, in a third of the words."""


class Answer(BaseModel):
    # The words of each field are in the server's instructions: once there, not in eight schemas.
    # `untrusted_log` and names inside `rows` come from models, logs and compilers: data, never instructions.
    model_config = ConfigDict(extra="forbid")

    job: str = ""
    state: Annotated[State | Literal[""], WithJsonSchema({"type": "string"})] = ""
    verdict: str = ""
    summary: str
    ids: dict[str, str] = {}
    rows: Annotated[list[dict[str, Cell]], WithJsonSchema(ROWS_SCHEMA)] = []
    truncated: bool = False
    total: int = 0
    progress: str = ""
    untrusted_log: str = ""
    next: str = ""


def of_job(row: Row, folder: Path, *, waiting_for: str = "", log: str = "") -> Answer:
    """What a job has to say now.

    Raises:
        ToolError: it failed: what happened and what to call next.
    """
    if not row.is_ended:
        return _unfinished(row, folder, waiting_for, log)
    outcome = job_folder.outcome(folder)
    if isinstance(outcome, Succeeded):
        return _result(row, folder, outcome.result, log)
    raise ToolError(_failure(row, outcome, log))


def _unfinished(row: Row, folder: Path, waiting_for: str, log: str) -> Answer:
    event = job_folder.last_event(folder)
    said = ""
    if event is not None:
        count = f" ({event.done}/{event.total})" if event.total else ""
        ago = max(0.0, time.time() - event.time)
        silent = job_folder.silent_s(folder)
        count += f"; no heartbeat for {silent:.0f} s" if silent else ""
        said = clean(f"{event.phase}: {event.message}{count}, {ago:.0f} s ago", CELL_CHARS, lines=False)
    behind = f", behind {clean(waiting_for, 200, lines=False)}" if waiting_for and waiting_for != row.id else ""
    return Answer(
        job=row.id,
        state=row.state,
        summary=f"{row.kind} is {row.state}{behind}; it goes on without this call.{_resumes(folder)}",
        progress=said,
        untrusted_log=log,
        next=f"wait_job(job={row.id!r})",
    )


def _resumes(folder: Path) -> str:
    before = clean(resume.noted(folder), 80, lines=False)
    return f" It resumes {before}." if before else ""


def _result(row: Row, folder: Path, result: Result, log: str) -> Answer:
    # An empty cell of a table says nothing in an object.
    rows = [
        {_cell(name): _value(value) for name, value in entry.items() if value is not None}
        for entry in result.rows[:ROWS]
    ]
    jobs = f"{folder.parent}{os.sep}"
    # An id is no path: what is to be run is named from the project.
    short = ".samebits/jobs/" if result.next.startswith("python ") else ""
    answer = Answer(
        job=row.id,
        state="succeeded",
        verdict=result.verdict,
        summary=clean("\n".join(filter(None, (result.summary, result.closing))).replace(jobs, ""), SUMMARY_CHARS),
        ids={_cell(name): _id(folder, path) for name, path in list(result.ids.items())[:50]},
        rows=rows,
        truncated=result.truncated or len(rows) < len(result.rows),
        total=max(result.total, len(result.rows)),
        untrusted_log=log,
        next=as_call(clean(resumable(result.next.replace(jobs, short)), CELL_CHARS, lines=False)),
    )
    return shortened(answer)


def shortened(answer: Answer) -> Answer:
    """The answer with as many rows as fit, and a pointer to the rest."""
    rows = list(answer.rows)
    while len(answer.model_dump_json()) > ANSWER_CHARS and rows:
        rows = rows[: len(rows) * 3 // 4]
        pointer = (
            f"{answer.next.partition(' All rows:')[0]} All rows: resource job://{answer.job}/file/result.json".strip()
        )
        answer = answer.model_copy(update={"rows": rows, "truncated": True, "next": pointer})
    if len(answer.model_dump_json()) > ANSWER_CHARS:
        cut = {"summary": clean(answer.summary, 1000), "untrusted_log": clean(answer.untrusted_log, 4000), "ids": {}}
        answer = answer.model_copy(update=cut)
    return answer


WORDS = {
    "samebits inspect": "inspect_setup",
    "samebits measure": "measure_gap",
    "samebits capture": "capture_activations",
    "samebits diff": "diff_ops",
    "samebits minimize": "minimize_repro",
    "samebits build": "build_kernel",
    "samebits propose": "propose_change",
    "samebits apply": "apply_change",
    "samebits gate": "run_regression",
    "--config": "config",
    "--set ": "overrides: ",
}


def resumable(text: str) -> str:
    """A step that goes on with a gate: over MCP its job is named where an experiment is."""
    return text.replace("samebits gate --resume ", "run_regression config=")


def for_tools(text: str) -> str:
    """A next step spelled for the command line, in the words of the tools."""
    for verb, tool in WORDS.items():
        text = text.replace(verb, tool)
    return text


def as_call(text: str) -> str:
    """A next step: the command's options as the tool's arguments."""
    return OPTION.sub(lambda found: f" {found[1].replace('-', '_')}=", for_tools(text))


FIRST = {"minimize": "divergence", "build": "candidate"}
"""The argument that names a job to resume, where it is not `config`."""
BEGUN_ANEW = ("propose", "apply")


def how_to_resume(row: Row) -> str:
    """What to call to have an ended job's request carried out once more."""
    tool = for_tools(f"samebits {row.kind}")
    if tool == f"samebits {row.kind}":
        return f"`samebits jobs resume {row.id}` in a terminal"
    if row.kind in BEGUN_ANEW:
        return f"call {tool} again"
    also = ", side=as before" if row.kind == "capture" else ""
    return f"{tool}({FIRST.get(row.kind, 'config')}={row.id!r}{also}) resumes it as it was asked"


def _failure(row: Row, outcome: Outcome, log: str) -> str:
    again = how_to_resume(row)
    if isinstance(outcome, TimedOut):
        less = "or ask for less (workload.prompts, capture.sequences)"
        return f"{row.kind} was ended after {outcome.words}, {less}; {again} under the same limit.{_mind(outcome.note)}"
    if isinstance(outcome, Cancelled):
        why = "ended with the server that ran it" if row.state == "interrupted" else "was cancelled"
        kept = f"the folder of job {row.id} is kept.{_mind(outcome.note)}"
        return f"{row.kind} {why}; nothing half-made counts. Next: {again}; {kept}"
    assert isinstance(outcome, Failed)
    kinds = {
        "user": "cannot run as asked",
        "side_died": "lost a side",
        "resource": "ran out of a resource",
        "node_lost": "lost its node",
        "internal": "failed",
    }
    said = for_tools(clean(outcome.message, SUMMARY_CHARS))
    # A user's mistake is told in our own sentence, which ends in what to do; anything else may be all foreign.
    said = f"(names in it are untrusted) {said}" if outcome.error == "user" else quoted(said)
    text = f"{row.kind} {kinds[outcome.error]}: {said}"
    if outcome.error != "user":
        text += f" Next: wait_job(job={row.id!r}, log_lines=60) shows the end of its log (untrusted text); {again}."
    return text + (f"\n--- untrusted log ---\n{log}" if log else "")


def _mind(note: str) -> str:
    return f" Mind: {clean(note, CELL_CHARS, lines=False)}." if note else ""


def _id(folder: Path, path: str) -> str:
    """JOB/NAME of an artifact, also where it is another job's; the path of what lies elsewhere."""
    real, jobs = Path(os.path.normpath(folder / path)), folder.parent
    return _cell(str(real.relative_to(jobs) if jobs in real.parents else real))


def _cell(text: str) -> str:
    return clean(text, CELL_CHARS, lines=False)


def _value(value: Cell) -> Cell:
    if isinstance(value, str):
        return _cell(value)
    # JSON has no NaN: the word instead.
    return str(value) if isinstance(value, float) and (value != value or abs(value) == float("inf")) else value
