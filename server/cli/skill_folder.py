"""The skill as a folder that clients look for. Needs Python alone, so that a bare checkout can install it too."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

from samebits.tools.schema.errors import UserError

NAME = "samebits"
FOLDER = Path(__file__).resolve().parents[2] / "skill"
PLACES = {"claude": ".claude/skills", "codex": ".agents/skills", "gemini": ".gemini/skills"}
LEFT_OUT = ("__pycache__", "*.py*", "evals")


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
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(FOLDER, part, ignore=shutil.ignore_patterns(*LEFT_OUT))
        (part / "SKILL.md").write_text(skill_text(), encoding="utf-8")
        if target.exists():
            shutil.rmtree(target)
        part.replace(target)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise UserError(str(target), error.strerror or str(error), "check the path, or give another --dest") from error
    return target


def install(clients: list[str], *, user: bool, dest: Path | None) -> list[Path]:
    """Write the skill for these clients (names of PLACES) and to `dest`, replacing older copies.

    Args:
        user: in the home folder instead of this project.

    Raises:
        UserError: no place named, or see `place`.
    """
    base = Path.home() if user else Path()
    folders = [base / PLACES[name] for name in clients] + ([dest] if dest else [])
    if not folders:
        raise UserError("skill install", "no place named", "say --claude, --codex, --gemini or --dest FOLDER")
    return [place(folder) for folder in folders]


def _is_ours(folder: Path) -> bool:
    page = folder / "SKILL.md"
    return page.is_file() and f"\nname: {NAME}\n" in page.read_text(encoding="utf-8", errors="replace")
