"""`samebits serve`: the MCP server on standard input and output, or over HTTP."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samebits.server.cli import quick
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from types import FrameType

Roots = Annotated[
    list[Path] | None,
    typer.Option(
        "--root", help="Folder that clients may name; the first is the project. Repeatable.", show_default=False
    ),
]
AllowHosts = Annotated[
    list[str] | None,
    typer.Option("--allow-host", help="Host header to accept besides loopback's: NAME:PORT. Repeatable."),
]
TokenFile = Annotated[Path | None, typer.Option(help="File with the bearer token (default: a fresh one, printed).")]


def client_end() -> int:
    """A copy of the descriptor that the one client writes to: the protocol takes the descriptor itself away.

    Raises:
        UserError: standard input is closed.
    """
    try:
        return os.dup(0)
    except OSError as error:
        raise UserError(
            "standard input", "closed, and there the client speaks", "let the client start the server, or add --http"
        ) from error


def serve(
    roots: Roots = None,
    worker_python: Annotated[
        str, typer.Option(help="Interpreter with torch, vllm and samebits (default: as each samebits.toml says).")
    ] = "",
    read_only: Annotated[bool, typer.Option(help="Only the tools that start no engine and build nothing.")] = False,
    http: Annotated[bool, typer.Option("--http", help="Serve HTTP at /mcp, with a bearer token.")] = False,
    host: Annotated[str, typer.Option(help="Address for --http.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port for --http; 0: a free one.", min=0, max=65535)] = 8321,
    token_file: TokenFile = None,
    allow_hosts: AllowHosts = None,
) -> None:
    """Serve the tools over MCP, on standard input and output for one client, or over HTTP."""
    with quick.imports():
        quick.without_its_init("mcp")
        from samebits.server.mcp.app import make_server
        from samebits.server.mcp.roots import Roots as Allowed

    project = Path(os.environ.get("CLAUDE_PROJECT_DIR") or Path.cwd())
    allowed = Allowed.of(tuple(roots or ()) or (project,))
    secret = token_file.absolute() if token_file else None
    os.chdir(allowed.project)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, leave)
    server = make_server(
        allowed,
        python=str(Path(worker_python).absolute()) if worker_python else "",
        read_only=read_only,
        client=None if http else client_end(),
    )
    if not http:
        server.run()
        return
    import anyio

    from samebits.server.mcp.http import listen, security_of, serve_http, token_of

    token, fresh = token_of(secret)
    security_of(host, port, tuple(allow_hosts or ()))  # what it refuses is refused before the port is taken
    sockets = listen(host, port)
    port = sockets[0].getsockname()[1]
    security = security_of(host, port, tuple(allow_hosts or ()))
    shown = f", token {token}" if fresh else ""
    print(f"samebits: http://{host}:{port}/mcp{shown}", file=sys.stderr, flush=True)
    # uvicorn puts its own handlers in the place of `leave`: it closes its connections, then the pool.
    anyio.run(partial(serve_http, server, host=host, sockets=sockets, token=token, security=security))


def leave(number: int, _: FrameType | None) -> None:
    """End at once: a thread of the protocol blocks in reading standard input, and no exception would get past it.
    Nothing is lost: wardens end their workers when this process is gone, and the jobs are found as interrupted.
    """
    os._exit(128 + number)
