"""Next steps spelled as calls: what a tool has no argument for is said in another way."""

from __future__ import annotations

from pathlib import Path

import pytest

from samebits.server.jobs.index import Row
from samebits.server.mcp.answers import FIRST, as_call, how_to_resume, resumable
from samebits.server.mcp.app import make_server
from samebits.server.mcp.roots import Roots


def row(kind: str) -> Row:
    return Row(f"20260101-000000-{kind}-aa", kind, "failed", 0.0, 0.0, 0.0, 0, "")


@pytest.mark.parametrize(
    ("said", "call"),
    [
        ("the axes that are left: samebits gate --resume JOB", "the axes that are left: run_regression config=JOB"),
        ("samebits diff --rollout JOB/rollout --max-operators 4", "diff_ops rollout=JOB/rollout max_operators=4"),
        (
            "mend what the summary names, then samebits gate again",
            "mend what the summary names, then run_regression again",
        ),
    ],
)
def test_a_command_becomes_a_call(said: str, call: str) -> None:
    assert as_call(resumable(said)) == call


@pytest.mark.anyio
async def test_what_resumes_a_job_is_an_argument_of_its_tool(tmp_path: Path) -> None:
    schemas = {
        tool.name: tool.input_schema["properties"] for tool in await make_server(Roots.of((tmp_path,))).list_tools()
    }
    for kind in ("inspect", "measure", "capture", "diff", "minimize", "build", "gate"):
        tool, _, argument = how_to_resume(row(kind)).partition("(")
        assert argument.partition("=")[0] in schemas[tool], kind
        assert argument.partition("=")[0] == FIRST.get(kind, "config")
    assert how_to_resume(row("propose")) == "call propose_change again"
    assert how_to_resume(row("rl")) == "`samebits jobs resume 20260101-000000-rl-aa` in a terminal"
