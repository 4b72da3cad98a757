"""What the benchmarks share: shapes, model folders, and an environment in which the checkout is samebits."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("server", "tools", "kernels", "skill")
_KNOWN = runpy.run_path(str(ROOT / "tools" / "sides" / "transformers" / "shapes.py"))
SHAPES: dict[str, dict[str, Any]] = _KNOWN["QWEN3"] | {
    "tiny": {"head_dim": 64, "num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 256, "vocab_size": 512}
}
FAMILY = {shape: "qwen3_tied" if shape in _KNOWN["TIED"] else "qwen3" for shape in SHAPES}
READY = "ready"
"""File in a model folder that says that it is complete."""
MAKE = (
    "import sys, json, pathlib, torch; from samebits.tools.sides.transformers.tiny import write_tiny;"
    "torch.set_default_device(sys.argv[2]);"
    "write_tiny(pathlib.Path(sys.argv[1]), sys.argv[4], **json.loads(sys.argv[3]))"
)


def linked(folder: Path, root: Path = ROOT) -> dict[str, str]:
    """Environment in which `samebits` is importable, and vLLM finds its plugin, without an installation.

    Args:
        folder: where the links are made; may hold them already, also those of another checkout.
    """
    package = folder / "samebits"
    package.mkdir(parents=True, exist_ok=True)
    for name in FOLDERS:
        link = package / name
        if link.is_symlink() and link.readlink() != root / name:
            link.unlink(missing_ok=True)
        with suppress(FileExistsError):  # perhaps by another process, a moment ago
            link.symlink_to(root / name)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    points = [f"[{group}]\n" + "".join(f"{name} = {to}\n" for name, to in had.items()) for group, had in groups.items()]
    facts = folder / f"{project['name']}-{project['version']}.dist-info"
    for old in folder.glob(f"{project['name']}-*.dist-info"):
        if old != facts:
            shutil.rmtree(old)
    facts.mkdir(exist_ok=True)
    named = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    for file, text in ((facts / "METADATA", named), (facts / "entry_points.txt", "\n".join(points))):
        # Not written again where it is the same: another process may be reading it.
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
    before = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(folder)]
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join([str(folder), *before])}


def write_model(folder: Path, shape: str, device: str, env: dict[str, str], layers: int = 0) -> None:
    """Random weights of the shape as a model folder that both sides read; one that is there already stays.

    Args:
        env: of `linked`.
        layers: how many; 0: as many as the shape has.

    Raises:
        SystemExit: another model, or half a one, lies there.
    """
    sizes = json.dumps(SHAPES[shape] | ({"num_hidden_layers": layers} if layers else {}))
    ready = folder / READY
    if ready.is_file() and ready.read_text(encoding="utf-8") == sizes:
        return
    if folder.exists():
        raise SystemExit(f"{folder} holds another model, or half a one: remove it, or choose another folder")
    subprocess.run([sys.executable, "-c", MAKE, str(folder), device, sizes, FAMILY[shape]], env=env, check=True)
    ready.write_text(sizes, encoding="utf-8")


def processor(env: dict[str, str]) -> str:
    """The host's processor and how many of it there are: small models wait for the host as much as for the GPU.

    Args:
        env: of `linked`.
    """
    code = "from samebits.kernels.adapters.setup.machine import cpu_model; print(cpu_model())"
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
    return f"{done.stdout.strip()}, {os.cpu_count()} in sight"
