"""SKILL.md, the README, the documentation, the command line and the list of tools say the same."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

from samebits.server.cli.main import app
from samebits.server.mcp.answers import WORDS
from samebits.server.mcp.app import make_server
from samebits.server.mcp.roots import Roots

ROOT = Path(__file__).resolve().parents[2]
PORTABLE = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
PAGES = sorted([ROOT / "SKILL.md", *(ROOT / "skill").rglob("*.md")])


@functools.cache
def whole() -> Any:
    """The command line as click sees it; making it takes a second."""
    return typer.main.get_command(app)


def commands() -> set[str]:
    return set(whole().commands)


@pytest.fixture
async def tools(tmp_path: Path) -> set[str]:
    return {tool.name for tool in await make_server(Roots.of((tmp_path,))).list_tools()}


def front_matter(text: str) -> dict[str, str]:
    """Keys of a page's YAML head, folded strings joined."""
    found: dict[str, str] = {}
    key = ""
    for line in text.split("\n---\n")[0].removeprefix("---\n").split("\n"):
        if match := re.match(r"([a-z-]+):\s*(.*)", line):
            key, found[match[1]] = match[1], match[2].removeprefix(">-")
        else:
            found[key] = f"{found[key]} {line.strip()}".strip()
    return found


def options_of(words: list[str]) -> set[str]:
    """Options of the command that these words begin with, a subcommand of `jobs`, `pool` or `skill` included."""
    found = whole()
    for word in words:
        inner = getattr(found, "commands", {})
        if word not in inner:
            break
        found = inner[word]
    return {"--help"} | {name for option in found.params for name in (*option.opts, *option.secondary_opts)}


def unknown_options(text: str) -> set[str]:
    """VERB --option, of commands in code, where the command has no such option."""
    code = re.findall(r"`samebits ([^`\n]+)`", text)
    code += re.findall(r"^\s{4,}\$?\s*samebits ([^#\n]+)", text, re.MULTILINE)
    found = set()
    for line in code:
        words = re.split(r"\s+|=", line.split(" -- ")[0].split("|")[0])
        for option in (word.strip(",.;)]") for word in words if re.match(r"\[?--[a-z]", word)):
            if option.strip("[") not in options_of(words):
                found.add(f"{words[0]} {option.strip('[')}")
    return found


def unknown_commands(text: str) -> set[str]:
    """Words after `samebits` in code that are no command."""
    code = re.findall(r"`samebits ([a-z]+)", text) + re.findall(r"^\s{4,}\$?\s*samebits ([a-z]+)", text, re.MULTILINE)
    return set(code) - commands()


def test_the_skill_keeps_the_open_form() -> None:
    text = (ROOT / "SKILL.md").read_text()
    head = front_matter(text)
    assert set(head) <= PORTABLE
    assert head["name"] == "samebits"
    assert 300 < len(head["description"]) <= 1024
    assert "Not for" in head["description"], "near misses must not trigger it"
    assert len(head["compatibility"]) <= 500
    assert len(text.splitlines()) < 500
    assert len(text) / 4 < 5000, "tokens"


@pytest.mark.anyio
async def test_the_skill_and_its_pages_name_every_tool_and_none_that_is_not_there(tools: set[str]) -> None:
    skill = (ROOT / "SKILL.md").read_text()
    assert {name for name in tools if f"`{name}`" not in skill} == set()
    assert {name for name in tools if name not in (ROOT / "skill/references/tool-cookbook.md").read_text()} == {
        "capture_activations"
    }, "SKILL.md says all there is to it"


@pytest.mark.anyio
async def test_every_tool_of_the_skill_stands_beside_its_command(tools: set[str]) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `samebits ([a-z]+)", (ROOT / "SKILL.md").read_text(), re.MULTILINE))
    assert set(rows) == tools
    assert set(rows.values()) <= commands()
    spoken = {verb.removeprefix("samebits "): tool for verb, tool in WORDS.items() if verb.startswith("samebits ")}
    assert spoken == {command: tool for tool, command in rows.items() if not tool.endswith("_job")}


def test_pages_name_only_commands_that_are_there() -> None:
    pages = [*PAGES, ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    assert {str(page): found for page in pages if (found := unknown_commands(page.read_text()))} == {}
    assert unknown_commands("`samebits vanish` and\n\n    samebits disappear --now\n") == {"vanish", "disappear"}


def test_pages_name_only_options_that_their_command_has() -> None:
    pages = [*PAGES, ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    assert {str(page): found for page in pages if (found := unknown_options(page.read_text()))} == {}
    assert unknown_options("`samebits measure --axes repeat --fast`, `samebits jobs --tail 3`") == {
        "measure --fast",
        "jobs --tail",
    }


@pytest.mark.anyio
async def test_the_page_of_the_server_has_a_row_for_every_tool(tools: set[str]) -> None:
    page = (ROOT / "docs/server.md").read_text()
    assert set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE)) & tools == tools


@pytest.mark.anyio
async def test_documented_arguments_are_those_of_the_tools(tmp_path: Path) -> None:
    schemas = {
        tool.name: set(tool.input_schema["properties"])
        for tool in await make_server(Roots.of((tmp_path,))).list_tools()
    }
    text = "\n".join(page.read_text() for page in PAGES)
    calls = re.findall(r"\b(" + "|".join(schemas) + r")\(([^()]*)\)", text)
    assert len(calls) > 15
    for name, arguments in calls:
        used = set(re.findall(r"(?:^|, )(\w+)=", re.sub(r"\[[^\]]*\]", "", arguments)))
        assert used <= schemas[name], (name, arguments)


def test_the_installed_skill_is_whole_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "samebits.server.cli.main", "skill", "install", "--claude", "--dest", "other"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [".claude/skills/samebits", "other/samebits"]
    for place in (tmp_path / ".claude/skills/samebits", tmp_path / "other/samebits"):
        pages = sorted(place.rglob("*.md"))
        assert len(pages) == len(PAGES)
        targets = [(page, target) for page in pages for target in re.findall(r"\]\(([^)#:]+)", page.read_text())]
        assert len(targets) > 10
        assert [pair for pair in targets if not (pair[0].parent / pair[1]).is_file()] == []
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert again.returncode == 0


def test_the_skill_never_replaces_what_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "samebits").mkdir()
    (tmp_path / "samebits" / "notes.txt").write_text("mine")
    command = [sys.executable, "-m", "samebits.server.cli.main", "skill", "install", "--dest", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is not this skill. Next:" in done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["samebits", "notes.txt"]


def test_every_link_in_the_skill_resolves_where_it_stands() -> None:
    targets = [(page, target) for page in PAGES for target in re.findall(r"\]\(([^)#:]+)", page.read_text())]
    assert [(page.name, target) for page, target in targets if not (page.parent / target).is_file()] == []
    assert len(PAGES) >= 11


def test_the_plugin_names_the_skill_the_server_and_the_version() -> None:
    plugin = json.loads((ROOT / ".claude-plugin/plugin.json").read_text())
    market = json.loads((ROOT / ".claude-plugin/marketplace.json").read_text())
    servers = json.loads((ROOT / ".mcp.json").read_text())["mcpServers"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (plugin["name"], plugin["version"]) == (project["name"], project["version"])
    assert all((ROOT / path / "SKILL.md").is_file() for path in plugin["skills"])
    assert [(entry["name"], entry["source"]) for entry in market["plugins"]] == [(plugin["name"], "./")]
    assert set(market) == {"name", "description", "owner", "plugins"}
    assert servers == {"samebits": {"command": "samebits", "args": ["serve"]}}
    assert servers["samebits"]["command"] in project["scripts"]
    assert servers["samebits"]["args"][0] in commands()


@pytest.mark.parametrize("said", ["not yet run"])
def test_recipes_that_were_never_run_say_so_in_their_first_line(said: str) -> None:
    first: Callable[[str], str] = lambda name: (ROOT / "skill/recipes" / name).read_text().splitlines()[0]  # noqa: E731
    assert said in first("nemotron-h.md")
    assert said in first("deepseek-v4.md")
    assert "Status: exact" in (ROOT / "skill/recipes/qwen3.md").read_text()
