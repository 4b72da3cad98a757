"""A candidate: a folder with candidate.toml and one source, holding a proposed kernel for one operator.

Used by the gate (samebits.tools.gate.candidate) and by the adapters, which load a candidate by its digest.
docs/candidates.md describes the form.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebits.kernels.registry import operator

KINDS = {"pytorch": (".py",), "triton": (".py",), "cpp": (".cpp",), "cuda": (".cu",)}
DTYPES = ("bfloat16", "float16", "float32")
TOP_KEYS = {"operator", "name", "kind", "source", "devices", "dtypes", "shapes", "claims"}
CLAIMS: dict[str, tuple[type, ...]] = {"backward": (bool,), "speed": (int, float)}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(slots=True, frozen=True)
class Candidate:
    """What candidate.toml says, checked."""

    folder: Path
    name: str
    operator: str
    kind: str
    source: Path
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[dict[str, int], ...]
    """In the operator's own keys; (): the operator's default shapes."""
    backward: bool
    """The source brings a gradient of its own."""
    speed: float | None
    """Claimed time of the replaced operator / time of the candidate, geometric mean over shapes and sizes."""
    digest: str
    """sha256 over candidate.toml and the source."""


@dataclass(slots=True, frozen=True)
class Loaded:
    """The callables of a candidate: `run(**args)`, and `backward(grads, **args)` where it brings one."""

    run: Callable[..., Any]
    backward: Callable[..., Any] | None


def unclaimed(candidate: Candidate, dtype: str, device: str = "") -> tuple[str, str] | None:
    """Why it cannot run under a side, and what it was built for; None: it claims both.

    Args:
        dtype: of the side, as in samebits.toml.
        device: "cpu" or "cuda"; empty: not known yet.
    """
    for word, found, claimed in (("dtype", dtype, candidate.dtypes), ("device", device, candidate.devices)):
        if found and found not in claimed:
            return f"does not claim {word} {found}", f"it was built for {', '.join(claimed)}"
    return None


def digest_of(folder: Path, source: Path) -> str:
    """sha256 over both files, each with its length in front."""
    total = hashlib.sha256()
    for path in (folder / "candidate.toml", source):
        data = path.read_bytes()
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()


def need(condition: bool, path: Path, message: str) -> None:
    """Raise ValueError `PATH: MESSAGE` unless `condition`."""
    if not condition:
        raise ValueError(f"{path}: {message}")


def words(
    raw: dict[str, Any], key: str, allowed: tuple[str, ...], default: tuple[str, ...], path: Path
) -> tuple[str, ...]:
    """A non-empty list of words out of `allowed`."""
    value = raw.get(key, list(default))
    good = isinstance(value, list) and value and all(isinstance(v, str) and v in allowed for v in value)
    need(bool(good), path, f"{key} = {value!r}: a list of {', '.join(allowed)} is needed")
    return tuple(value)


def describe(folder: Path) -> Candidate:
    """Read and check candidate.toml.

    Raises:
        ValueError: no candidate.toml, not TOML, unknown or missing keys, an unknown operator, a source outside the
        folder.
    """
    path = folder / "candidate.toml"
    need(path.is_file(), folder, "no candidate.toml here; docs/candidates.md shows one")
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not valid TOML: {error}") from error
    need(
        not set(raw) - TOP_KEYS,
        path,
        f"unknown keys {', '.join(sorted(set(raw) - TOP_KEYS))}; known are {', '.join(sorted(TOP_KEYS))}",
    )
    kind = raw.get("kind")
    need(kind in KINDS, path, f"kind = {kind!r}: one of {', '.join(KINDS)} is needed")
    need(isinstance(raw.get("operator"), str), path, "operator is missing")
    try:
        inputs = operator(raw["operator"]).inputs
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    name = raw.get("name", folder.resolve().name)
    need(
        isinstance(name, str) and bool(NAME.fullmatch(name)),
        path,
        f"name = {name!r}: letters, digits, '.', '_' and '-' are allowed",
    )
    source = source_of(folder, raw.get("source"), KINDS[str(kind)], path)
    shapes = raw.get("shapes", [])
    keys = set(inputs.SHAPES[0])
    fits = isinstance(shapes, list) and all(
        isinstance(s, dict) and set(s) == keys and all(type(v) is int for v in s.values()) for s in shapes
    )
    need(fits, path, f"shapes: each needs the integers {', '.join(sorted(keys))}")
    claims = raw.get("claims", {})
    need(isinstance(claims, dict) and not set(claims) - set(CLAIMS), path, f"claims: known are {', '.join(CLAIMS)}")
    for key, value in claims.items():
        need(
            isinstance(value, CLAIMS[key]) and (key == "backward" or not isinstance(value, bool)),
            path,
            f"claims.{key} = {value!r} has the wrong type",
        )
    speed = claims.get("speed")
    return Candidate(
        folder,
        name,
        raw["operator"],
        str(kind),
        source,
        words(raw, "devices", ("cpu", "cuda"), ("cuda",), path),
        words(raw, "dtypes", DTYPES, ("bfloat16",), path),
        tuple(shapes),
        claims.get("backward", False),
        None if speed is None else float(speed),
        digest_of(folder, source),
    )


def source_of(folder: Path, value: object, suffixes: tuple[str, ...], path: Path) -> Path:
    """The one source file: named, or the only one with a fitting suffix. It must lie in the folder itself."""
    if value is None:
        found = sorted(p for p in folder.iterdir() if p.suffix in suffixes)
        need(len(found) == 1, path, f"source is not named and the folder holds {len(found)} files {' '.join(suffixes)}")
        value = found[0].name
    need(
        isinstance(value, str) and Path(str(value)).name == value,
        path,
        f"source = {value!r}: the name of a file in this folder is needed",
    )
    source = folder / str(value)
    need(source.suffix in suffixes, path, f"source = {value!r}: {' or '.join(suffixes)} is needed for this kind")
    need(
        source.is_file() and source.resolve().parent == folder.resolve(),
        path,
        f"source = {value!r}: no such file in this folder",
    )
    return source


def load(candidate: Candidate, build_folder: Path) -> Loaded:
    """Import or build the source.

    Args:
        build_folder: where compiled code goes; must exist.

    Raises:
        ValueError: it does not define what it must. Whatever the source itself raises passes through.
    """
    if candidate.kind in ("cpp", "cuda"):
        return load_compiled(candidate, build_folder)
    spec = importlib.util.spec_from_file_location(f"samebits_candidate_{candidate.digest[:16]}", candidate.source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    run, backward = getattr(module, "run", None), getattr(module, "backward", None)
    if not callable(run):
        raise ValueError(f"{candidate.source}: defines no function run")
    if candidate.backward and not callable(backward):
        raise ValueError(f"{candidate.source}: claims a backward but defines no function backward")
    return Loaded(run, backward if candidate.backward else None)


def load_compiled(candidate: Candidate, build_folder: Path) -> Loaded:
    """Build with torch.utils.cpp_extension; the source registers `samebits_candidate::run` (and `::backward`)."""
    import torch
    from torch.utils import cpp_extension

    cpp_extension.load(
        f"samebits_candidate_{candidate.digest[:16]}",
        [str(candidate.source)],
        build_directory=str(build_folder),
        is_python_module=False,
        extra_cflags=["-O2", "-ffp-contract=off"],
        extra_cuda_cflags=["-O2", "--fmad=false"],
    )
    found = torch.ops.samebits_candidate
    if not hasattr(found, "run"):
        raise ValueError(f"{candidate.source}: registers no operator samebits_candidate::run")
    if candidate.backward and not hasattr(found, "backward"):
        raise ValueError(
            f"{candidate.source}: claims a backward but registers no operator samebits_candidate::backward"
        )
    return Loaded(found.run, found.backward if candidate.backward else None)
