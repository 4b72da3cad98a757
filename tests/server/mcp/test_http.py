"""`samebits serve --http`: who is let in, over real connections."""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from samebits.server.mcp.http import security_of, token_of
from samebits.tools.schema.errors import UserError

TOKEN = "correct-horse-battery-staple"
WAIT_S = 120.0
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
BODY = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO})
GOOD = {
    "Authorization": f"Bearer {TOKEN}",
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server of its own for this module."""
    with serving(tmp_path_factory.mktemp("http"), "127.0.0.1", "--allow-host", "proxy.example") as chosen:
        yield chosen


@contextmanager
def serving(folder: Path, host: str, *options: str) -> Iterator[int]:
    """A server; gives its port."""
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(TOKEN + "\n")
    command = [sys.executable, "-m", "samebits.server.cli.main", "serve", "--http", "--port", "0"]
    command += ["--host", host, *options]
    env = os.environ | {"SAMEBITS_LOCKS": str(folder / "locks")}
    process = subprocess.Popen([*command, "--token-file", str(token)], cwd=folder, env=env, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        said = process.stderr.readline().decode()
        address = re.search(rf"http://{re.escape(host)}:([1-9]\d*)/mcp", said)
        assert address is not None, said
        assert TOKEN not in said, "a token that a person keeps in a file is not printed"
        yield int(address[1])  # it listens before it says so
    finally:
        process.terminate()
        process.wait(WAIT_S)
        process.stderr.close()  # type: ignore[union-attr]


def status(port: int, headers: dict[str, str], body: Any = BODY, path: str = "/mcp", host: str = "127.0.0.1") -> int:
    connection = http.client.HTTPConnection(host, port, timeout=WAIT_S)
    try:
        with suppress(BrokenPipeError, ConnectionResetError):  # it may have its answer before all of it is sent
            connection.request("POST", path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_token_opens_and_nothing_else_does(port: int) -> None:
    assert status(port, GOOD) == 200
    without = {name: value for name, value in GOOD.items() if name != "Authorization"}
    assert status(port, without) == 401
    for scheme in ("bearer", "BEARER"):
        assert status(port, GOOD | {"Authorization": f"{scheme} {TOKEN}"}) == 200, scheme
    for wrong in ("Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ", TOKEN):
        assert status(port, GOOD | {"Authorization": wrong}) == 401, wrong
    assert status(port, without, path="/anything") == 401


def test_a_taken_port_is_one_error_before_anything_is_printed(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = str(other.getsockname()[1])
        command = [sys.executable, "-m", "samebits.server.cli.main", "serve", "--http", "--port", taken]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done
    said = " ".join(done.stderr.split())
    assert (
        said == f"error: --host 127.0.0.1 --port {taken}: Address already in use. Next: give another --port or --host"
    )
    assert done.stdout == ""


def test_a_foreign_host_or_origin_is_refused_even_with_the_token(port: int) -> None:
    assert status(port, GOOD | {"Host": "evil.example"}) == 421
    assert status(port, GOOD | {"Origin": "http://evil.example"}) == 403
    assert status(port, GOOD | {"Origin": f"http://127.0.0.1:{port}"}) == 200
    assert status(port, GOOD | {"Host": "127.0.0.1:1"}) == 421, "another port of this machine is another place"


def test_a_proxys_name_that_was_allowed_is_let_in_on_loopback(port: int) -> None:
    assert status(port, GOOD | {"Host": "proxy.example"}) == 200
    assert status(port, GOOD | {"Host": "proxy.example", "Origin": "https://proxy.example"}) == 200
    assert status(port, GOOD | {"Host": "proxy.example.evil"}) == 421
    assert status(port, GOOD | {"Host": "proxy.example", "Origin": "https://evil.example"}) == 403


def test_every_address_of_loopback_checks_host_and_origin(tmp_path: Path) -> None:
    """127.0.0.2 is one the SDK takes for no loopback: it would check nothing."""
    with serving(tmp_path, "127.0.0.2") as port:
        assert status(port, GOOD, host="127.0.0.2") == 200
        assert status(port, GOOD | {"Host": "evil.example"}, host="127.0.0.2") == 421
        assert status(port, GOOD | {"Origin": "http://evil.example"}, host="127.0.0.2") == 403


def test_a_body_of_ten_mebibytes_is_refused(port: int) -> None:
    assert status(port, GOOD, body=json.dumps({"x": "y" * (10 << 20)})) == 413


def sent_in_chunks(port: int, headers: dict[str, str], mebibytes: int) -> int:
    """Status of a body that names no length. It is sent until the server answers, which may be before its end."""
    head = {**headers, "Host": f"127.0.0.1:{port}", "Transfer-Encoding": "chunked"}
    chunk = b"10000\r\n" + b"y" * 0x10000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as end:
        lines = "".join(f"{key}: {value}\r\n" for key, value in head.items())
        end.sendall(f"POST /mcp HTTP/1.1\r\n{lines}\r\n".encode())
        with suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(16 * mebibytes):
                if select.select([end], [], [], 0.001)[0]:
                    break
                end.sendall(chunk)
            else:
                end.sendall(b"0\r\n\r\n")
        return int(end.recv(1 << 16).split()[1])


def test_a_body_that_names_no_length_is_cut_off_too(port: int) -> None:
    without = {name: value for name, value in GOOD.items() if name != "Authorization"}
    assert sent_in_chunks(port, GOOD, 10) == 413
    assert sent_in_chunks(port, without, 10) == 401
    assert sent_in_chunks(port, GOOD, 1) == 400, "the control: a short one is read to its end, and is no JSON"
    assert status(port, without, body=json.dumps({"x": "y" * (10 << 20)})) == 401
    assert status(port, GOOD) == 200, "the server goes on"


@pytest.mark.anyio
@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_both_eras_work_over_http(port: int, era: Any) -> None:
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as web:
        transport = streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=web)
        async with Client(transport, mode=era) as client:
            assert len((await client.list_tools()).tools) == 11
            assert (await client.call_tool("wait_job", {})).structured_content["total"] == 0  # type: ignore[index]


def test_a_weak_or_open_token_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(UserError, match="no token can be read"):
        token_of(file)
    file.touch(mode=0o600)
    file.write_text("short")
    with pytest.raises(UserError, match="at least 16 characters"):
        token_of(file)
    file.write_text(TOKEN)
    assert token_of(file) == (TOKEN, False)
    file.chmod(0o644)
    with pytest.raises(UserError, match="others can read it"):
        token_of(file)
    assert len({token_of(None)[0] for _ in range(3)}) == 3


def test_beyond_loopback_the_names_must_be_given() -> None:
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        made = security_of(host, 8321, ())
        assert made.enable_dns_rebinding_protection
        assert {"127.0.0.1:8321", "localhost:8321", "[::1]:8321"} <= set(made.allowed_hosts)
    assert "[::1]" in security_of("::1", 80, ()).allowed_hosts
    assert "[::1]" not in security_of("::1", 8321, ()).allowed_hosts
    with pytest.raises(UserError, match=r"reaches beyond this machine\. Next: add --allow-host"):
        security_of("0.0.0.0", 8321, ())
    made = security_of("0.0.0.0", 8321, ("box:8321",))
    assert made.enable_dns_rebinding_protection
    assert "box:8321" in made.allowed_hosts
    assert not {"0.0.0.0:8321", "0.0.0.0"} & set(made.allowed_hosts)
