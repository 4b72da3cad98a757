"""The MCP server: tools, resources and prompts over one pool of jobs."""

from __future__ import annotations

from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.types import ListResourcesResult
from pydantic import ValidationError

from samebits.server.jobs.index import Index
from samebits.server.jobs.links import JOBS
from samebits.server.jobs.pool import Pool
from samebits.server.jobs.slots import Slots, default_folder, gpus
from samebits.server.jobs.sweep import sweep
from samebits.server.mcp import job_tools, prompts, proposals, resources, verbs
from samebits.server.mcp.clean import clean
from samebits.server.mcp.context import PATIENCE_S, App, refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp.server.context import ServerRequestContext
    from mcp.server.mcpserver import Context
    from mcp.types import CallToolResult, InputRequiredResult, PaginatedRequestParams, Tool

    from samebits.server.mcp.roots import Roots

SAFE = {"PYTHONSAFEPATH": "1"}
"""No module is looked for in the working directory, which is the project."""
BOUNDS = frozenset(("title", "minimum", "maximum", "maxLength", "maxItems"))
UNSAID = frozenset(("title", "default", "additionalProperties", "required", "items"))
INSTRUCTIONS = Path(__file__).with_name("texts") / "instructions.md"


class Samebits(MCPServer[App]):
    """MCPServer with a short tool list: it is read before anything is done, in every session of every client."""

    async def list_tools(self) -> list[Tool]:
        """The tools, their schemas without what says nothing, or is said by the error when it matters."""
        return [
            tool.model_copy(
                update={
                    "description": " ".join((tool.description or "").split()),
                    "input_schema": bare(tool.input_schema, BOUNDS),
                    # An answer always holds every field and no other: neither needs saying eleven times.
                    "output_schema": bare(tool.output_schema, UNSAID, text=False),
                }
            )
            for tool in await super().list_tools()
        ]

    async def _handle_list_resources(
        self, ctx: ServerRequestContext[Any], params: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        # The SDK lists what was registered; what there is here comes and goes with jobs.
        app: App = ctx.lifespan_context
        return ListResourcesResult(resources=resources.newest(app))

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
            cause = error.__cause__
            if tool is None or (isinstance(error, UnexpectedToolError) and not isinstance(cause, ValidationError)):
                raise  # a crash: the SDK logs it and says no more
            said = str(refused(cause)) if isinstance(cause, ValidationError) else str(error)
            # One style for all: the tool's name, then what is wrong.
            raise ToolError(f"{name}: {said.removeprefix(f'Error executing tool {name}: ')}") from error


def bare(node: Any, without: frozenset[str], *, names: bool = False, text: bool = True) -> Any:
    """A JSON schema without some keywords and without defaults that are empty.

    Args:
        names: this mapping's keys are names of fields, not keywords.
        text: say of a field that is text that it is.
    """
    if isinstance(node, dict):
        kept = {key: value for key, value in node.items() if names or not _unsaid(key, value, without)}
        if not text and kept == {"type": "string"}:
            return {}
        return {
            key: bare(value, without, names=not names and key in ("properties", "$defs"), text=text)
            for key, value in kept.items()
        }
    return [bare(value, without, text=text) for value in node] if isinstance(node, list) else node


def _unsaid(key: str, value: object, without: frozenset[str]) -> bool:
    return key in without or (key == "default" and value in ("", [], None))


def make_server(
    roots: Roots,
    *,
    python: str = "",
    read_only: bool = False,
    locks: Path | None = None,
    patience_s: float = PATIENCE_S,
    client: int | None = None,
) -> Samebits:
    """A server for one project.

    Args:
        roots: what clients may name; jobs are kept below the first.
        python: interpreter of the workers, before pool.worker_python of an experiment.
        locks: folder of the slot locks; None: this user's.
        patience_s: longest a call waits before it answers with a job id.
        client: descriptor of the standard input that is served; None: over HTTP, or in memory.
    """

    @asynccontextmanager
    async def lifespan(_: MCPServer[App]) -> AsyncIterator[App]:
        root = roots.project / JOBS
        index = Index(root)
        sweep(root)
        pool = Pool(index, Slots(locks or default_folder()), python=python, env=SAFE if read_only else {})
        app = App(pool, roots, python, patience_s, read_only, client)

        async def prepare() -> None:
            # Ahead of the first job and beside the start: nvidia-smi can take seconds.
            await anyio.to_thread.run_sync(gpus)
            await anyio.lowlevel.checkpoint()  # a thread is waited for even by a server that closes
            if not read_only:
                pool.take_up(app.checked)

        async with anyio.create_task_group() as group:
            group.start_soon(prepare)
            group.start_soon(pool.run)
            try:
                yield app
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
