"""Manifests and set-up lines of each client, against compact schemas of the clients' own."""

from __future__ import annotations

import base64
import copy
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
import pytest
import typer.main

from samebits.server.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = Path(__file__).with_name("schemas")
PAGE = (ROOT / "docs/clients.md").read_text()
BLOCKS: dict[str, Any] = {
    name: (tomllib.loads if form == "toml" else json.loads)(text)
    for form, name, text in re.findall(r"^```(json|toml) (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
}
MANIFESTS = {
    "claude-plugin": ROOT / ".claude-plugin/plugin.json",
    "claude-marketplace": ROOT / ".claude-plugin/marketplace.json",
    "claude": ROOT / ".mcp.json",
}


def wrong(name: str, value: Any) -> list[str]:
    """What the schema has against a value."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(value)]


def serving(value: Any) -> list[list[str]]:
    """Every command line that a configuration would start."""
    if isinstance(value, list):
        return [line for entry in value for line in serving(entry)]
    if not isinstance(value, dict):
        return []
    if "command" in value:
        command = value["command"]
        return [[*(command if isinstance(command, list) else [command]), *value.get("args", [])]]
    return [line for entry in value.values() for line in serving(entry)]


def one_liners() -> dict[str, list[str]]:
    """Client -> the words of its one-line set-up."""
    rows = re.findall(r"^\| ([A-Z][\w ]+?) \| `([^`]+)` \|", PAGE, re.MULTILINE)
    return {client: shlex.split(line) for client, line in rows}


def test_every_schema_is_used_and_names_its_source() -> None:
    names = {path.stem for path in SCHEMAS.glob("*.json")}
    assert names == set(MANIFESTS) | set(BLOCKS)
    for name in names:
        assert len(json.loads((SCHEMAS / f"{name}.json").read_text())["$comment"]) > 40, name


@pytest.mark.parametrize("name", MANIFESTS)
def test_each_manifest_fits_its_schema(name: str) -> None:
    assert wrong(name, json.loads(MANIFESTS[name].read_text())) == []


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_each_documented_configuration_fits_its_schema_and_starts_the_server(name: str) -> None:
    assert wrong(name, BLOCKS[name]) == []
    assert serving(BLOCKS[name]) == [["samebits", "serve"]]


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("claude-plugin", ("name",), "Same Bits"),
        ("claude-plugin", ("version",), "one"),
        ("claude-plugin", ("skills",), ["skill"]),
        ("claude-plugin", ("mcp",), {}),
        ("claude-marketplace", ("name",), "agent-skills"),
        ("claude-marketplace", ("owner",), {}),
        ("claude-marketplace", ("plugins", 0, "source"), "."),
        ("claude", ("mcpServers", "samebits", "command"), ["samebits"]),
        ("codex", ("mcp_servers", "samebits", "timeout"), 3),
        ("gemini", ("mcpServers", "samebits", "type"), "stdio"),
        ("gemini", ("mcpServers", "same_bits"), {"command": "samebits"}),
        ("vscode", ("servers", "samebits", "type"), "local"),
        ("vscode", ("mcpServers",), {}),
        ("cursor", ("mcpServers", "samebits", "args"), "serve"),
        ("opencode", ("mcp", "samebits"), {"type": "local", "command": ["samebits"]}),
        ("opencode-1", ("mcp", "samebits", "command"), "samebits serve"),
    ],
)
def test_a_broken_manifest_is_refused(name: str, path: tuple[str | int, ...], value: Any) -> None:
    given = BLOCKS[name] if name in BLOCKS else json.loads(MANIFESTS[name].read_text())
    broken = copy.deepcopy(given)
    inner = broken
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    assert wrong(name, given) == []
    assert wrong(name, broken) != []


def test_the_one_liners_start_the_server_with_a_command_that_is_there() -> None:
    lines = one_liners()
    assert set(lines) == {"Claude Code", "Codex", "Gemini CLI", "VS Code", "Cursor"}
    assert lines["Claude Code"] == ["claude", "mcp", "add", "samebits", "--", "samebits", "serve"]
    assert lines["Codex"] == ["codex", "mcp", "add", "samebits", "--", "samebits", "serve"]
    assert lines["Gemini CLI"] == ["gemini", "mcp", "add", "samebits", "samebits", "serve"]
    assert lines["VS Code"][:2] == ["code", "--add-mcp"]
    added = json.loads(lines["VS Code"][2])
    assert wrong("vscode", {"servers": {added.pop("name"): added}}) == []
    assert serving(added) == [["samebits", "serve"]]
    link = urlsplit(lines["Cursor"][0])
    assert (link.scheme, link.netloc, link.path) == ("cursor", "anysphere.cursor-deeplink", "/mcp/install")
    asked = parse_qs(link.query)
    linked = {"mcpServers": {asked["name"][0]: json.loads(base64.b64decode(asked["config"][0]))}}
    assert linked == BLOCKS["cursor"]
    assert "serve" in typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_the_project_file_on_the_page_is_the_checkouts_own() -> None:
    assert json.loads((ROOT / ".mcp.json").read_text()) == BLOCKS["claude"]


def test_the_skill_installs_from_a_bare_checkout(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        # -S: no site-packages, so nothing of samebits' own needs is there.
        command = [sys.executable, "-E", "-S", str(ROOT / "scripts/skill.py"), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    done = run("--codex", "--dest", "other")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [".agents/skills/samebits", "other/samebits"]
    installed = {path.relative_to(tmp_path / "other/samebits").as_posix() for path in tmp_path.glob("other/**/*.md")}
    assert {"SKILL.md", "references/tool-cookbook.md", "recipes/qwen3.md"} <= installed
    assert "](skill/" not in (tmp_path / "other/samebits/SKILL.md").read_text()
    none = run()
    assert none.returncode == 2
    assert "Next: say --claude" in none.stderr
