"""`samebits skill install`: puts the agent skill where a client looks for it."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import Annotated

import typer

from samebits.tools.schema.errors import UserError

NAME = "samebits"
FOLDER = Path(__file__).parents[2] / "skill"
PLACES = {"claude": ".claude/skills", "codex": ".agents/skills", "gemini": ".gemini/skills"}
app = typer.Typer(help="The agent skill.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """The agent skill: the procedure that an agent follows with these tools."""


def skill_text() -> str:
    """SKILL.md as it stands beside its references: in the wheel there, in a checkout at the root, one level up."""
    inside = FOLDER / "SKILL.md"
    if inside.is_file():
        return inside.read_text(encoding="utf-8")
    return (FOLDER.parent / "SKILL.md").read_text(encoding="utf-8").replace("](skill/", "](")


def place(folder: Path) -> Path:
    """Write the skill to `folder`/samebits, whole or not at all.

    Raises:
        UserError: something else stands there, or it cannot be written.
    """
    target = folder / NAME
    if target.exists() and not _is_ours(target):
        raise UserError(str(target), "exists and is not this skill", "move it away, or give another --dest")
    part = folder / f".{NAME}-{secrets.token_hex(4)}"
    try:
        shutil.copytree(FOLDER, part, ignore=shutil.ignore_patterns("__pycache__", "*.py*"))
        (part / "SKILL.md").write_text(skill_text(), encoding="utf-8")
        if target.exists():
            shutil.rmtree(target)
        part.replace(target)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise UserError(str(target), error.strerror or str(error), "check the path, or give another --dest") from error
    return target


def _is_ours(folder: Path) -> bool:
    page = folder / "SKILL.md"
    return page.is_file() and f"\nname: {NAME}\n" in page.read_text(encoding="utf-8", errors="replace")


@app.command()
def install(
    claude: Annotated[bool, typer.Option("--claude", help="For Claude Code: .claude/skills.")] = False,
    codex: Annotated[bool, typer.Option("--codex", help="For Codex: .agents/skills.")] = False,
    gemini: Annotated[bool, typer.Option("--gemini", help="For Gemini CLI: .gemini/skills.")] = False,
    user: Annotated[bool, typer.Option("--user", help="In the home folder instead of this project.")] = False,
    dest: Annotated[Path | None, typer.Option(help="Any other folder of skills.")] = None,
) -> None:
    """Put the skill into this project (or, with --user, the home folder), replacing an older copy."""
    chosen = [name for name, wanted in (("claude", claude), ("codex", codex), ("gemini", gemini)) if wanted]
    base = Path.home() if user else Path()
    folders = [base / PLACES[name] for name in chosen] + ([dest] if dest else [])
    if not folders:
        raise UserError("samebits skill install", "no place named", "say --claude, --codex, --gemini or --dest FOLDER")
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        print(place(folder))
