"""Reads samebits.toml; every error names the file, the line, the key and what was expected."""

from __future__ import annotations

import itertools
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
    try:
        text = path.read_text(encoding="utf-8")
        if text.startswith("\ufeff"):
            raise UserError(str(path), "begins with a byte order mark", "save it as UTF-8 without BOM")
        raw = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise UserError(str(path), f"not UTF-8 text: {error}", "save it as UTF-8") from error
    except OSError as error:
        raise UserError(str(path), f"cannot be read ({error.strerror})", "check its permissions") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(str(path), f"not valid TOML: {error}", "correct that line") from error
    changed: dict[str, object] = {}
    for override in overrides:
        _override(changed, override)
    own = _sections_with_their_own_model(_merge(raw, changed))
    _resolve(raw, path.parent, own)
    _resolve(changed, Path.cwd(), own)
    try:
        return Experiment.model_validate(_merge(raw, changed))
    except ValidationError as error:
        first = error.errors()[0]
        # Behind the key pydantic names the branch of a union: not a word of the file.
        location = list(itertools.takewhile(lambda part: re.fullmatch(r"\w+", part), map(str, first["loc"])))
        key = ".".join(location)
        line = line_of(text, location)
        where = f"{path}:{line}" if line else str(path)
        where = "--set" if _has(changed, location) else where
        reason = (
            "unknown key" if first["type"] == "extra_forbidden" else f"{first['msg'].lower()}, got {first['input']!r}"
        )
        raise UserError(
            f"{where}: {key}", reason, "see the comments that `samebits init` writes for what is expected"
        ) from error


def overridden(raw: dict[str, object], overrides: tuple[str, ...]) -> dict[str, object]:
    """The settings of an experiment without a file, with "section.key=value" on top.

    Raises:
        UserError: an override of another form.
    """
    changed: dict[str, object] = {}
    for override in overrides:
        _override(changed, override)
    _resolve(changed, Path.cwd(), set())
    return _merge(raw, changed)


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
        if not isinstance(nested, dict):
            raise UserError(f"--set {text}", f"{name} was set to {nested!r} before", "set keys of a section, not both")
        into = nested
    into[last] = parsed


def _has(changed: dict[str, object], location: list[str]) -> bool:
    """An override names this key or something above it."""
    at: object = changed
    for name in location:
        if not isinstance(at, dict) or name not in at:
            return False
        at = at[name]
        if not isinstance(at, dict):
            return True
    return True


def _sections_with_their_own_model(raw: dict[str, object]) -> set[str]:
    """A python: factory reads `model` as it likes: it is no path of ours."""
    sides = {name: part.get("side") for name in ("rollout", "trainer") if isinstance(part := raw.get(name), dict)}
    return {name for name, side in sides.items() if isinstance(side, str) and side.startswith("python:")}


def _resolve(raw: dict[str, object], folder: Path, own: set[str]) -> None:
    for section, key in (("rollout", "model"), ("trainer", "model"), ("workload", "file")):
        part = raw.get(section)
        if section not in own and isinstance(part, dict) and isinstance(value := part.get(key), str) and value:
            part[key] = str((folder / Path(value).expanduser()).resolve())
    for section in ("rollout", "trainer"):
        part = raw.get(section)
        if isinstance(part, dict) and isinstance(named := part.get("kernels"), list):
            part["kernels"] = [
                str((folder / Path(value).expanduser()).resolve()) if isinstance(value, str) else value
                for value in named
            ]
