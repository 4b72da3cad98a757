"""Reads samebits.toml; every error names the file, the line, the key and what was expected."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from pydantic import ValidationError

from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Experiment

NAME = "samebits.toml"
TEMPLATE = Path(__file__).with_name("template.toml")


def read(path: Path, overrides: tuple[str, ...] = ()) -> Experiment:
    """Read an experiment file. Relative paths in it are taken from its folder.

    Args:
        path: the file, or a folder with samebits.toml.
        overrides: "section.key=value" (value in TOML, or bare text), applied on top; paths in them from the working
        directory.

    Raises:
        UserError: missing, not TOML, unknown key, wrong type or value.
    """
    path = path / NAME if path.is_dir() else path
    if not path.is_file():
        raise UserError(
            str(path), "no experiment file here", "run `samebits init` to write a commented one, or give --config"
        )
    text = path.read_text(encoding="utf-8")
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(str(path), f"not valid TOML: {error}", "correct that line") from error
    _resolve(raw, path.parent)
    changed: dict[str, object] = {}
    for override in overrides:
        _override(changed, override)
    _resolve(changed, Path.cwd())
    try:
        return Experiment.model_validate(_merge(raw, changed))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"] if part != "constrained-str")
        line = line_of(text, [str(part) for part in first["loc"]])
        where = f"{path}:{line}" if line else str(path)
        reason = (
            "unknown key" if first["type"] == "extra_forbidden" else f"{first['msg'].lower()}, got {first['input']!r}"
        )
        raise UserError(
            f"{where}: {key}", reason, "see the comments that `samebits init` writes for what is expected"
        ) from error


def line_of(text: str, location: list[str]) -> int | None:
    """Line number (from 1) of a key such as ["rollout", "dtype"] in TOML text; None when it is not there."""
    section: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([\w.\-]+)\s*\]+", line):
            section = header[1].split(".")
            if section == location:
                return number
        elif entry := re.match(r"\s*([\w.\-]+)\s*=", line):
            full = section + entry[1].split(".")
            if full == location[: len(full)]:
                return number
    return None


def _merge(base: dict[str, object], top: dict[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in top.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _override(into: dict[str, object], text: str) -> None:
    key, sign, value = text.partition("=")
    if not sign or not re.fullmatch(r"[\w.\-]+", key):
        raise UserError(f"--set {text}", "not of the form section.key=value", "for example --set rollout.dtype=float32")
    try:
        parsed: object = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    *sections, last = key.split(".")
    for name in sections:
        nested = into.setdefault(name, {})
        assert isinstance(nested, dict)
        into = nested
    into[last] = parsed


def _resolve(raw: dict[str, object], folder: Path) -> None:
    for section, key in (("rollout", "model"), ("trainer", "model"), ("workload", "file")):
        part = raw.get(section)
        if isinstance(part, dict) and isinstance(value := part.get(key), str) and value:
            part[key] = str((folder / Path(value).expanduser()).resolve())
