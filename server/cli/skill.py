"""`samebits skill install`: puts the agent skill where a client looks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samebits.server.cli import skill_folder

app = typer.Typer(help="The agent skill.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """The agent skill: the procedure that an agent follows with these tools."""


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
    for target in skill_folder.install(chosen, user=user, dest=dest):
        print(target)
