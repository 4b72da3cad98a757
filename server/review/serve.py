"""Serves the review page until Ctrl-C. The code goes to the person's terminal and nowhere else."""

from __future__ import annotations

import os
import socket
import webbrowser
from contextlib import suppress
from typing import IO, TYPE_CHECKING

import uvicorn

from samebits.server.review.door import Door
from samebits.server.review.page import Pages
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

HOST = "127.0.0.1"


def listen(port: int) -> socket.socket:
    """A socket on loopback.

    Raises:
        UserError: the port is taken.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((HOST, port))
    except OSError as error:
        sock.close()
        raise UserError(f"--port {port}", error.strerror or str(error), "give another one, or none") from error
    return sock


def serve(jobs: Path, tty: IO[str], *, port: int, path: str, browser: bool) -> None:
    """Serve the proposals of one project.

    Args:
        tty: the person's terminal.
        port: 0: a free one.
        path: of the page to name in the terminal.
        browser: open it in the desktop's browser, where there is a desktop. Its address holds no secret.
    """
    with listen(port) as sock:
        port = sock.getsockname()[1]
        address = f"http://{HOST}:{port}/{path}"

        def show(code: str) -> None:
            tty.write(f"code: {code}\n")
            tty.flush()

        tty.write(f"Proposals of {jobs}\n  open {address}\n  and type this code there; Ctrl-C ends it\n")
        door = Door(show)
        door.renew()
        if browser and any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
            webbrowser.open(address)
        config = uvicorn.Config(
            Pages(jobs, door).app(port),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=2,
        )
        # Ctrl-C is how it ends: uvicorn has closed by then, and sends itself the signal once more.
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[sock])
