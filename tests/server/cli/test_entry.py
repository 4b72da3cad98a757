"""The `samebits` command starts the server without what it does not need, and leaves nothing out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
ENTRY = [sys.executable, "-m", "samebits.server.cli.entry"]


def loaded_by_serve(project: Path, command: list[str]) -> set[str]:
    """Modules that a server has loaded when it has answered `initialize`."""
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO})
    log = project / "imports.txt"
    with (
        log.open("w") as file,
        subprocess.Popen(
            [command[0], "-X", "importtime", *command[1:], "serve"],
            cwd=project,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        # The end of the input comes after the answer: it ends the server, whatever that is at.
        assert '"serverInfo"' in process.stdout.readline()
        process.stdin.close()
    entries = log.read_text().splitlines()
    return {entry.split("|")[-1].strip() for entry in entries if entry.startswith("import time:")}


def test_the_server_starts_without_the_clients_half_of_the_protocol_pages_and_ray(project: Path) -> None:
    unneeded = {"mcp.client", "mcp.client.session", "jinja2", "ray", "rich.progress", "samebits.server.cli.main"}
    assert loaded_by_serve(project, ENTRY) & unneeded == set()
    everything = loaded_by_serve(project, [sys.executable, "-m", "samebits.server.cli.main"])
    assert everything & unneeded, "the control: the whole command line loads some of it"


def test_a_package_taken_without_its_init_has_its_names_all_the_same() -> None:
    code = """
import sys
from samebits.server.cli import quick
with quick.imports():
    quick.without_its_init("mcp")
    import mcp.server
assert "mcp.client" not in sys.modules
from mcp import Client
assert Client is sys.modules["mcp.client"].Client
import pydantic
assert "defer_build" not in pydantic.BaseModel.model_config
from mcp.types import InitializeRequestParams as P, Implementation
assert P(protocolVersion="x", capabilities={}, clientInfo={"name": "n", "version": "1"}).client_info.name == "n"
try:
    Implementation(name=[])
except pydantic.ValidationError:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


def test_a_mistake_is_one_line_by_this_way_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [*ENTRY, "serve", "--root", "gone"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "error: gone: no such folder. Next: give --root a folder that is there\n"
    done = subprocess.run([*ENTRY, "version"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("0.")
