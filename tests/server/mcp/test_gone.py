"""A client that goes away in the middle of a call over HTTP."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from samebits.server.jobs.index import Index

TOKEN = "a-token-of-this-test-alone"
HEADERS = {
    "Authorization": f"Bearer {TOKEN}",
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2026-07-28",
}


@pytest.fixture
def port(project: Path, tmp_path: Path, strays: Any) -> Iterator[int]:
    """A server over the project of the stand-in."""
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(TOKEN)
    command = [sys.executable, "-m", "samebits.server.cli.main", "serve", "--http", "--port", "0"]
    with subprocess.Popen([*command, "--token-file", str(token)], cwd=project, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            address = re.search(rb"http://127\.0\.0\.1:(\d+)/mcp", process.stderr.readline())
            assert address is not None
            yield int(address[1])  # it listens before it says so
        finally:
            process.terminate()
            process.wait(120)


def raw_call(port: int, name: str, arguments: dict[str, Any]) -> socket.socket:
    """A tools/call sent on a socket of its own; nothing is read."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": name, "arguments": arguments, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    head = {**HEADERS, "Host": f"127.0.0.1:{port}", "Content-Length": str(len(body))}
    head |= {"Mcp-Method": "tools/call", "Mcp-Name": name}
    lines = "".join(f"{key}: {value}\r\n" for key, value in head.items())
    end = socket.create_connection(("127.0.0.1", port), timeout=120)
    end.sendall(f"POST /mcp HTTP/1.1\r\n{lines}\r\n".encode() + body)
    return end


@pytest.mark.anyio
async def test_a_client_gone_in_mid_call_ends_its_own_job_alone(
    port: int, project: Path, doing: Any, eventually: Any
) -> None:
    """As the protocol has it: a stream that its client closed is a cancelled call. The control is another's job."""
    jobs = project / ".samebits" / "jobs"
    gone = raw_call(port, "measure_gap", doing("sleep", 600))
    eventually(lambda: list(jobs.glob("*/events.jsonl")))
    staying = raw_call(port, "measure_gap", doing("sleep", 0.5))
    eventually(lambda: len(list(jobs.glob("*/request.json"))) == 2)
    gone.close()
    address = f"http://127.0.0.1:{port}/mcp"
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as web,
        Client(streamable_http_client(address, http_client=web)) as client,
    ):
        found = (await client.call_tool("wait_job", {})).structured_content
        assert found is not None
        for row in found["rows"]:
            state = row["state"]
            while state in ("queued", "running"):
                answer = await client.call_tool("wait_job", {"job": row["job"]})
                state = "" if answer.is_error else (answer.structured_content or {})["state"]
    assert {row.state for row in Index(jobs).rows()} == {"cancelled", "succeeded"}
    said = b""
    while b'"verdict":"equal"' not in said.replace(b": ", b":"):
        more = staying.recv(1 << 16)
        assert more, said
        said += more
    staying.close()
