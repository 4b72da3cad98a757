"""propose_change and apply_change, as a client of either era sees them; real workers, a real repository."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.types import ElicitResult

from samebits.server.mcp.app import make_server
from samebits.server.mcp.roots import Roots
from samebits.tools.schema.proposals import open_proposal

pytestmark = pytest.mark.anyio
ERAS = ("legacy", "auto")
Connect = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def connected(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """connected(era, elicitation_callback=None, **settings of make_server)."""
    monkeypatch.chdir(project)

    @asynccontextmanager
    async def connect(era: str = "auto", elicitation_callback: Any = None, **settings: Any) -> AsyncIterator[Client]:
        server = make_server(Roots.of((project,)), locks=tmp_path / "locks", **settings)
        async with Client(server, mode=era, elicitation_callback=elicitation_callback) as client:  # type: ignore[arg-type]
            yield client

    return connect


def patch_of(project: Path, id: str) -> str:
    return open_proposal(project / ".samebits" / "jobs" / id).manifest.patch


def branches(kit: Any, project: Path) -> set[str]:
    return set(kit.git(project, "for-each-ref", "--format=%(refname:short)").split())


def jobs(project: Path) -> set[str]:
    return {path.name for path in (project / ".samebits" / "jobs").iterdir() if path.is_dir()}


async def finished(client: Client, tool: str, arguments: dict[str, Any]) -> Any:
    """A tool's answer, waited for."""
    result = await client.call_tool(tool, arguments)
    while not result.is_error and result.structured_content["state"] in ("queued", "running"):
        result = await client.call_tool("wait_job", {"job": result.structured_content["job"]})
    return result


async def test_apply_asks_for_the_person_on_every_call_and_read_only_has_neither(connected: Connect) -> None:
    async with connected() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert (tools["apply_change"].meta or {})["anthropic/requiresUserInteraction"] is True
        assert "looked" not in tools["apply_change"].input_schema["properties"]
        assert set(tools["apply_change"].input_schema["required"]) == {"proposal", "patch"}
        for name in ("propose_change", "apply_change"):
            assert tools[name].annotations is not None
            assert tools[name].annotations.read_only_hint is False
    async with connected(read_only=True) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        assert not listed & {"propose_change", "apply_change"}
        assert (await client.call_tool("apply_change", {"proposal": "x", "patch": "0" * 12})).is_error


async def test_a_proposal_is_made_and_waits_for_a_person(connected: Connect, kit: Any, project: Path) -> None:
    job = kit.job(project, "build")
    kit.gate(job.folder / "candidate-gate", project / "kernels" / "norm")
    arguments = {"candidate": "kernels/norm", "gate": f"{job.folder.name}/candidate-gate", "why": "words"}
    async with connected() as client:
        answer = (await finished(client, "propose_change", arguments)).structured_content
        assert answer["verdict"] == "done"
        id = answer["ids"]["proposal"]
        assert patch_of(project, id) in answer["summary"]
        assert "`samebits review`" in answer["next"]
        assert f"apply_change {id} patch={patch_of(project, id)[:12]}" in answer["next"]
        assert [row["name"] for row in answer["rows"][:2]] == ["kernels/norm/candidate.toml", "kernels/norm/kernel.py"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"candidate": "../elsewhere"}, "outside the allowed folders"),
        ({"candidate": "/etc"}, "outside the allowed folders"),
        ({"config": "../samebits.toml"}, "outside the allowed folders"),
        ({"gate": "none"}, "no such artifact"),
        ({"gate": "PROPOSAL"}, "is a proposal. Next: give the id of a candidate_gate"),
        ({"gate": "GATE", "repro": "GATE"}, "is a candidate_gate. Next: give the id of a repro"),
        ({"gate": "GATE", "sides": "all"}, "sides"),
        ({"gate": "GATE", "why": "x" * 5000}, "why"),
    ],
)
async def test_what_cannot_be_proposed_is_said_before_a_job_is_made(
    connected: Connect, kit: Any, project: Path, proposed: Callable[..., str], change: dict[str, str], said: str
) -> None:
    id = proposed()
    names = {"PROPOSAL": id, "GATE": id.replace("/proposal", "/candidate-gate")}
    arguments = {"candidate": "kernels/norm", "gate": "GATE"} | change
    before = jobs(project)
    async with connected() as client:
        result = await client.call_tool(
            "propose_change", {key: names.get(value, value) for key, value in arguments.items()}
        )
    assert result.is_error
    assert said in result.content[0].text
    assert jobs(project) == before


@pytest.mark.parametrize("era", ERAS)
async def test_only_what_a_person_approved_is_applied(
    era: str, connected: Connect, kit: Any, project: Path, proposed: Callable[..., str]
) -> None:
    id = proposed()
    branch = f"by-{era}"
    arguments = {"proposal": id, "patch": patch_of(project, id), "branch": branch}
    async with connected(era) as client:
        result = await finished(client, "apply_change", arguments)
        assert result.is_error
        assert "not reviewed. Next: ask the person to run `samebits review" in result.content[0].text
        kit.review(project / ".samebits" / "jobs" / id)
        before = kit.state(project)
        answer = (await finished(client, "apply_change", arguments)).structured_content
        assert answer["verdict"] == "done"
        assert kit.state(project) == before
        assert branch in branches(kit, project)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"patch": ""}, "patch: says nothing"),
        ({"patch": "zz"}, "patch"),
        ({"proposal": "nothing"}, "no such artifact"),
        ({"proposal": "GATE"}, "is a candidate_gate. Next: give the id of a proposal"),
        ({"proposal": "/etc"}, "outside the allowed folders"),
    ],
)
async def test_an_apply_that_means_nothing_is_refused_at_once(
    connected: Connect, project: Path, proposed: Callable[..., str], change: dict[str, str], said: str
) -> None:
    id = proposed()
    names = {"GATE": id.replace("/proposal", "/candidate-gate")}
    arguments = {"proposal": id, "patch": patch_of(project, id)} | change
    before = jobs(project)
    async with connected() as client:
        result = await client.call_tool(
            "apply_change", {key: names.get(value, value) for key, value in arguments.items()}
        )
    assert result.is_error
    assert said in result.content[0].text
    assert jobs(project) == before


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_client_that_asks_and_is_declined_means_not_reviewed(
    era: str, action: Any, connected: Connect, kit: Any, project: Path, proposed: Callable[..., str]
) -> None:
    id = proposed()
    asked = []

    async def answer(_: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action=action)

    before = jobs(project), branches(kit, project)
    async with connected(era, answer) as client:
        result = await client.call_tool("apply_change", {"proposal": id, "patch": patch_of(project, id)})
    assert result.is_error
    assert "not reviewed: the question was declined or closed. Next:" in result.content[0].text
    assert len(asked) == 1
    assert "Run `samebits review` in a terminal" in asked[0]
    assert (jobs(project), branches(kit, project)) == before


@pytest.mark.parametrize("decides", [False, True])
async def test_a_question_that_nobody_answers_ends_within_the_patience_and_the_record_decides(
    decides: bool, connected: Connect, kit: Any, project: Path, proposed: Callable[..., str]
) -> None:
    id = proposed()
    asked = []

    async def answer(_: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        if decides:
            kit.review(project / ".samebits" / "jobs" / id)
        await anyio.sleep_forever()
        raise AssertionError

    arguments = {"proposal": id, "patch": patch_of(project, id), "branch": "by-record"}
    async with connected("legacy", answer, patience_s=8) as client:
        with anyio.fail_after(500):
            result = await finished(client, "apply_change", arguments)
    assert len(asked) == 1
    assert result.is_error is not decides
    assert ("by-record" in branches(kit, project)) is decides
    if not decides:
        assert "not reviewed" in result.content[0].text


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("decides", [False, True])
async def test_a_client_that_says_yes_approves_nothing_by_itself(
    era: str, decides: bool, connected: Connect, kit: Any, project: Path, proposed: Callable[..., str]
) -> None:
    id = proposed()

    async def answer(_: Any, params: Any) -> ElicitResult:
        if decides:
            kit.review(project / ".samebits" / "jobs" / id)
        return ElicitResult(action="accept", content={"decided": "yes"})

    branch = f"asked-{era}"
    async with connected(era, answer) as client:
        arguments = {"proposal": id, "patch": patch_of(project, id), "branch": branch}
        result = await finished(client, "apply_change", arguments)
    assert result.is_error is not decides
    assert (branch in branches(kit, project)) is decides
    if not decides:
        assert "not reviewed" in result.content[0].text


async def test_from_a_green_gate_to_a_branch_over_stdio_with_the_approval_in_a_browser(
    kit: Any, tmp_path: Path, at_terminal: Any, browser: Any
) -> None:
    project = kit.repository(tmp_path / "project")
    job = kit.job(project, "build")
    gate = f"{job.folder.name}/{kit.gate(job.folder / 'candidate-gate', project / 'kernels' / 'norm').name}"
    env = dict(os.environ) | {"SAMEBITS_LOCKS": str(tmp_path / "locks"), "CLAUDE_PROJECT_DIR": str(project)}
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "samebits.server.cli.main", "serve"], cwd=project, env=env
    )
    async with Client(command, mode="legacy") as client:
        made = await finished(client, "propose_change", {"candidate": "kernels/norm", "gate": gate, "sides": "both"})
        assert not made.is_error, made.content
        id = made.structured_content["ids"]["proposal"]
        arguments = {"proposal": id, "patch": patch_of(project, id)}
        assert (await finished(client, "apply_change", arguments)).is_error
        with at_terminal(project) as person:
            base = person.enter(browser)
            browser.open(f"{base}/proposal/{id}")
            assert "waiting for you" in browser.text()
            browser.leave("button[value=approved]")
            assert "Approved by" in browser.text()
            assert person.end() in (0, 2)
        before = kit.state(project)
        applied = await finished(client, "apply_change", arguments)
        assert applied.structured_content["verdict"] == "done", applied
        assert kit.state(project) == before
    manifest = open_proposal(project / ".samebits" / "jobs" / id).manifest
    assert kit.git(project, "rev-parse", f"{manifest.branch}^{{tree}}") == manifest.tree
