"""`samebits serve`: the MCP server on standard input and output."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from types import FrameType

Roots = Annotated[
    list[Path] | None,
    typer.Option(
        "--root", help="Folder that clients may name; the first is the project. Repeatable.", show_default=False
    ),
]


def serve(
    roots: Roots = None,
    worker_python: Annotated[
        str, typer.Option(help="Interpreter with torch, vllm and samebits (default: as each samebits.toml says).")
    ] = "",
    read_only: Annotated[bool, typer.Option(help="Only the tools that start no engine and build nothing.")] = False,
) -> None:
    """Serve the tools over MCP on standard input and output, for one client."""
    # Importing the protocol's models allocates so much that looking for garbage meanwhile costs a sixth of the start.
    gc.disable()
    from samebits.server.mcp.app import make_server
    from samebits.server.mcp.roots import Roots as Allowed

    project = Path(os.environ.get("CLAUDE_PROJECT_DIR") or Path.cwd())
    allowed = Allowed.of(tuple(roots or ()) or (project,))
    os.chdir(allowed.project)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, leave)
    server = make_server(
        allowed, python=str(Path(worker_python).absolute()) if worker_python else "", read_only=read_only
    )
    gc.freeze()
    gc.enable()
    server.run()


def leave(number: int, _: FrameType | None) -> None:
    """End at once: a thread of the protocol blocks in reading standard input, and no exception would get past it.
    Nothing is lost: wardens end their workers when this process is gone, and the jobs are found as interrupted.
    """
    os._exit(128 + number)
