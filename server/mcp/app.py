"""The MCP server: tools, resources and prompts over one pool of jobs."""

from __future__ import annotations

from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import ValidationError

from samebits.server.jobs.index import Index
from samebits.server.jobs.pool import Pool
from samebits.server.jobs.slots import Slots, default_folder, gpus
from samebits.server.jobs.sweep import sweep
from samebits.server.mcp import job_tools, prompts, proposals, resources, verbs
from samebits.server.mcp.clean import clean
from samebits.server.mcp.context import PATIENCE_S, App, refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp.server.mcpserver import Context
    from mcp.types import CallToolResult, InputRequiredResult, Tool

    from samebits.server.mcp.roots import Roots

JOBS = ".samebits/jobs"
UNSAID = {"title", "default", "additionalProperties", "required"}
INSTRUCTIONS = Path(__file__).with_name("texts") / "instructions.md"


class Samebits(MCPServer[App]):
    """MCPServer whose tool list is without the `title` of every schema node: a third of its tokens, nothing said."""

    async def list_tools(self) -> list[Tool]:
        """The tools, their schemas stripped."""
        return [
            tool.model_copy(
                update={
                    "description": " ".join((tool.description or "").split()),
                    "input_schema": bare(tool.input_schema, {"title"}),
                    # An answer always holds every field and no other: neither needs saying eleven times.
                    "output_schema": bare(tool.output_schema, UNSAID),
                }
            )
            for tool in await super().list_tools()
        ]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[App, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool. The SDK takes no notice of arguments it does not know, and repeats pydantic's own text.

        Raises:
            ToolError: an unknown argument, one of a wrong type, or what the tool says.
        """
        tool = self._tool_manager.get_tool(name)
        known = set() if tool is None else set(tool.parameters.get("properties", {}))
        if tool is not None and (unknown := sorted(set(arguments) - known)):
            named = ", ".join(clean(repr(each), 100, lines=False) for each in unknown[:5])
            takes = ", ".join(sorted(known)) or "none"
            raise ToolError(f"{name}: unknown argument {named}. Next: it takes {takes}.")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if isinstance(error.__cause__, ValidationError):
                raise refused(error.__cause__) from error
            raise


def bare(node: Any, without: set[str], *, names: bool = False) -> Any:
    """A JSON schema without some keywords. `names`: this mapping's keys are names of fields, not keywords."""
    if isinstance(node, dict):
        kept = {key: value for key, value in node.items() if names or key not in without}
        return {
            key: bare(value, without, names=not names and key in ("properties", "$defs")) for key, value in kept.items()
        }
    return [bare(value, without) for value in node] if isinstance(node, list) else node


def make_server(
    roots: Roots,
    *,
    python: str = "",
    read_only: bool = False,
    locks: Path | None = None,
    patience_s: float = PATIENCE_S,
) -> Samebits:
    """A server for one project.

    Args:
        roots: what clients may name; jobs are kept below the first.
        python: interpreter of the workers, before pool.worker_python of an experiment.
        locks: folder of the slot locks; None: this user's.
        patience_s: longest a call waits before it answers with a job id.
    """

    @asynccontextmanager
    async def lifespan(_: MCPServer[App]) -> AsyncIterator[App]:
        root = roots.project / JOBS
        index = Index(root)
        sweep(root)
        pool = Pool(index, Slots(locks or default_folder()), python=python)
        async with anyio.create_task_group() as group:
            # Ahead of the first job and beside the start: nvidia-smi can take seconds.
            group.start_soon(anyio.to_thread.run_sync, gpus)
            group.start_soon(pool.run)
            try:
                yield App(pool, roots, python, patience_s)
            finally:
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await pool.close()
                index.close()

    server = Samebits(
        "samebits",
        title="samebits",
        version=version("samebits"),
        instructions=INSTRUCTIONS.read_text(encoding="utf-8"),
        lifespan=lifespan,
        log_level="WARNING",
    )
    verbs.register(server, read_only=read_only)
    proposals.register(server, read_only=read_only)
    job_tools.register(server, read_only=read_only)
    resources.register(server)
    prompts.register(server)
    return server
