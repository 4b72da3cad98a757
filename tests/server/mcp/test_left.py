"""Whose client has closed its end: its calls are cut off, not cancelled."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

from samebits.server.mcp.context import App


def app(client: int | None) -> Any:
    return App(None, None, "", client=client)  # type: ignore[arg-type]


def test_a_client_that_closed_a_pipe_or_ended_its_half_of_a_socket_is_gone() -> None:
    ours, theirs = os.pipe()
    assert not app(ours).is_left()
    os.write(theirs, b"not read yet")
    assert not app(ours).is_left()
    os.close(theirs)
    assert app(ours).is_left()
    os.close(ours)
    here, there = socket.socketpair()
    with here, there:
        assert not app(here.fileno()).is_left()
        there.shutdown(socket.SHUT_WR)
        assert app(here.fileno()).is_left()


def test_where_clients_come_and_go_none_is_the_one() -> None:
    assert not app(None).is_left()
    with open(os.devnull) as nothing:
        assert not app(nothing.fileno()).is_left()


def test_a_server_without_a_standard_input_says_so() -> None:
    command = [sys.executable, "-m", "samebits.server.cli.entry", "serve"]
    done = subprocess.run(
        ["sh", "-c", '"$@" <&-', "sh", *command], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "standard input: closed" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
