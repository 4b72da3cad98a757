"""The files and folders that a request names: they travel with it to another machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FILE = "file:"


def named(request: dict[str, Any]) -> list[Path]:
    """Every absolute path in a request (its JSON) that is there, each once."""
    return list(dict.fromkeys(path for _, _, path in _places(request)))


def renamed(request: dict[str, Any], names: Mapping[Path, str]) -> dict[str, Any]:
    """The request with these paths replaced, in place."""
    for holder, key, path in list(_places(request)):
        if path in names:
            prefix = FILE if str(holder[key]).startswith(FILE) else ""
            holder[key] = prefix + names[path]
    return request


def _places(request: dict[str, Any]) -> Iterator[tuple[Any, Any, Path]]:
    """Holder, key and path. The table of what names a path: server/mcp/roots.py checks the same keys."""
    spots: list[tuple[Any, Any]] = [(request, key) for key in ("rollout", "divergence", "candidate", "resume")]
    experiment = request.get("experiment")
    if isinstance(experiment, dict):
        spots += [(experiment[section], "model") for section in ("rollout", "trainer")]
        spots += [(experiment["workload"], "file"), (experiment["rollout"], "side")]
        for section in ("rollout", "trainer"):
            kernels = experiment[section]["kernels"]
            if isinstance(kernels, list):
                spots += [(kernels, place) for place in range(len(kernels))]
    for holder, key in spots:
        value = holder.get(key) if isinstance(holder, dict) else holder[key]
        if isinstance(value, str):
            path = Path(value.removeprefix(FILE))
            if path.is_absolute() and path.exists():
                yield holder, key, path
