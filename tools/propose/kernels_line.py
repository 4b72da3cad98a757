"""Edits the `kernels` line of samebits.toml and nothing else: comments, order and spacing stay."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from typing import TYPE_CHECKING, Any

from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

LINE = re.compile(r"(\s*kernels\s*=\s*)(.*?)(\s*#.*)?(\r?\n?)\Z", re.DOTALL)


def with_candidate(text: str, sides: Sequence[str], folder: str, what: str) -> str:
    """The file with a candidate's folder on the `kernels` line of each side, behind those that are there.

    Args:
        folder: as the file should name it.
        what: the file, for errors.

    Raises:
        UserError: a table that cannot stand beside a candidate, or a form this cannot edit.
    """
    raw = parsed(text, what)
    for side in sides:
        section = raw.get(side, {})
        now = section.get("kernels", "none") if isinstance(section, dict) else "none"
        if now == "vllm":
            raise UserError(
                f'{what}: {side}.kernels = "vllm"',
                "vLLM's own operators and a candidate cannot stand on one side together",
                f"leave this side out (sides), or commit another value of {side}.kernels first",
            )
        folders = [*now, folder] if isinstance(now, list) and folder not in now else [folder]
        if isinstance(now, list) and folder in now:
            continue
        text = with_kernels(text, side, folders, what)
    return text


def with_kernels(text: str, side: str, folders: Sequence[str], what: str) -> str:
    """The file with `kernels` of one section set, checked by reading it again.

    Raises:
        UserError: the file has a form in which one line cannot say it.
    """
    wanted: dict[str, Any] = copy.deepcopy(parsed(text, what))
    wanted.setdefault(side, {})
    if isinstance(wanted[side], dict):
        wanted[side]["kernels"] = list(folders)
    edited = edit(text, side, "[" + ", ".join(json.dumps(folder) for folder in folders) + "]")
    try:
        good = tomllib.loads(edited) == wanted
    except tomllib.TOMLDecodeError:
        good = False
    if not good:
        raise UserError(
            f"{what}: {side}.kernels", "written in a form this cannot edit", f"put it on one line below [{side}]"
        )
    return edited


def edit(text: str, side: str, value: str) -> str:
    """The text with the line put in or replaced."""
    lines = text.splitlines(keepends=True)
    end_of_line = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    header = next((n for n, line in enumerate(lines) if re.match(rf"\s*\[\s*{side}\s*\]", line)), None)
    if header is None:
        gap = "" if not lines or not lines[-1].strip() else end_of_line
        closed = "" if not lines or lines[-1].endswith("\n") else end_of_line
        return text + closed + gap + f"[{side}]{end_of_line}kernels = {value}{end_of_line}"
    last = next((n for n in range(header + 1, len(lines)) if re.match(r"\s*\[", lines[n])), len(lines))
    place = header + 1
    for number in range(header + 1, last):
        if found := LINE.fullmatch(lines[number]):
            lines[number] = f"{found[1]}{value}{found[3] or ''}{found[4]}"
            return "".join(lines)
        if re.match(r"\s*#\s*kernels\s*=", lines[number]):
            place = number + 1
    if not lines[place - 1].endswith("\n"):
        lines[place - 1] += end_of_line
    lines.insert(place, f"kernels = {value}{end_of_line}")
    return "".join(lines)


def parsed(text: str, what: str) -> dict[str, Any]:
    """The file's content.

    Raises:
        UserError: not TOML.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(what, f"not valid TOML: {error}", "correct that line") from error
