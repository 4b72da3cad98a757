"""The two tools of review: a proposal, and writing what a person approved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import anyio
from mcp.server.mcpserver import AcceptedElicitation, Elicit, ElicitationResult, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field

from samebits.server.mcp.answers import Answer
from samebits.server.mcp.verbs import WORKS, Ctx, app_of, mistakes
from samebits.tools.schema import reader, reviews
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.proposals import open_proposal
from samebits.tools.schema.requests import ApplyRequest, ProposeRequest

if TYPE_CHECKING:
    from mcp.server import MCPServer

    from samebits.server.mcp.context import App

SIDES = {"both": ("rollout", "trainer"), "rollout": ("rollout",), "trainer": ("trainer",)}
WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
CALLS_AGAIN = "2026-07-28"
"""From this protocol on the answer to a question comes with a call of its own."""
APPLYING = 0.25
"""Share of a call's patience that is kept for the work itself when the person is asked first."""
Id = Annotated[str, Field(description="id of propose_change's proposal")]


class Looked(BaseModel):
    """The answer to the question whether the person has decided. It approves nothing: the record of the review does."""

    decided: Literal["yes", "no"] = Field(default="no", description="Have you decided on the review page?")


async def propose_change(
    ctx: Ctx,
    candidate: Annotated[str, Field(description="its folder, in the user's git repository")],
    gate: Annotated[str, Field(description="id of build_kernel's candidate_gate, green")],
    repro: Annotated[str, Field(description="id of the repro it answers")] = "",
    why: Annotated[str, Field(max_length=4000)] = "",
    config: str = ".",
    sides: Literal["trainer", "rollout", "both"] = "trainer",
) -> Answer:
    """Patch (candidate, kernels line of samebits.toml) with its evidence, for a person to review."""
    app = app_of(ctx)
    with mistakes():
        file = app.roots.path(config, "config", whole=False)
        request = ProposeRequest.model_validate(
            {
                "candidate": str(_unresolved(app, candidate)),
                "gate": app.artifact(gate, "candidate_gate"),
                "repro": app.artifact(repro, "repro") if repro else "",
                "config": str(file / reader.NAME if file.is_dir() else file),
                "sides": SIDES[sides],
                "why": why,
                "sandbox": app.own().gate.sandbox,
                "roots": [str(folder) for folder in app.roots.folders],
            }
        )
    return await app.carry_out(ctx, request)


def _unresolved(app: App, text: str) -> Path:
    """A candidate's folder as it was named, once it is allowed: links in it are refused later, not followed."""
    app.roots.path(text, "candidate")
    return app.roots.project / text


async def ask_to_look(proposal: str, ctx: Ctx) -> Elicit[Looked] | Looked:
    """Where nobody has decided and the client can ask, have it ask the person to go and look. A client of 2026-07-28 is
    told to and calls again; an earlier one is waited for, not longer than a call may take.
    """
    app = app_of(ctx)
    able = ctx.client_capabilities
    try:
        undecided = reviews.find(open_proposal(Path(app.artifact(proposal, "proposal")))) is None
    except UserError:
        undecided = False  # the tool itself says what is wrong
    if not undecided or not able or not able.elicitation:
        return Looked()
    words = f"Proposal {proposal} waits for you. Run `samebits review` in a terminal, decide there, then come back."
    if (ctx.protocol_version or "") >= CALLS_AGAIN:
        return Elicit(words, Looked)
    with anyio.move_on_after(app.patience_s * (1 - APPLYING)):
        if not isinstance(await ctx.elicit(words, Looked), AcceptedElicitation):
            raise closed(proposal)
    # Nobody answered: whether the person has decided meanwhile, the record says.
    return Looked()


def closed(proposal: str) -> ToolError:
    """The person did not want to be asked."""
    return ToolError(
        f"proposal {proposal}: not reviewed: the question was declined or closed. Next: have the person run "
        "`samebits review` and decide, then call apply_change again."
    )


async def apply_change(
    ctx: Ctx,
    proposal: Id,
    patch: Annotated[str, Field(description="its sha256, 12 digits or more")],
    looked: Annotated[ElicitationResult[Looked], Resolve(ask_to_look)],
    to: Literal["branch", "patch"] = "branch",
    branch: Annotated[str, Field(description="default: the proposal's", max_length=200)] = "",
) -> Answer:
    """Write what a person approved in `samebits review` to a new branch or a patch file. Approves nothing."""
    app = app_of(ctx)
    if not isinstance(looked, AcceptedElicitation):
        raise closed(proposal)
    with mistakes():
        if not patch:
            raise UserError("patch", "says nothing", "give the sha256 that propose_change gave")
        request = ApplyRequest.model_validate(
            {
                "proposal": app.artifact(proposal, "proposal"),
                "patch": patch,
                "to": to,
                "branch": branch,
                "roots": [str(folder) for folder in app.roots.folders],
            }
        )
    return await app.carry_out(ctx, request, patience_s=app.patience_s * APPLYING)


def register(server: MCPServer[App], *, read_only: bool) -> None:
    """Add the tools; none of them with read_only."""
    if read_only:
        return
    server.add_tool(propose_change, title="Propose a kernel for review", annotations=WORKS)
    server.add_tool(
        apply_change,
        title="Write an approved change to a branch",
        annotations=WRITES,
        meta={"anthropic/requiresUserInteraction": True},
    )
