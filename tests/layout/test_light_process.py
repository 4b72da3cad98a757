"""The command line and the server load nothing heavy, seen from a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

HEAVY = {"torch", "vllm", "transformers", "triton", "numpy"}
LIGHT = ("server", "tools/schema", "tools/report")


def loaded_after(code: str, cwd: Path) -> set[str]:
    """The top-level packages in `sys.modules` after `code`, run alone in a new process."""
    report = "import json, sys\nprint('\\n' + json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    run = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return set(json.loads(run.stdout.splitlines()[-1]))


def light_modules(tracked: Iterable[Path]) -> list[str]:
    python = (name for name in tracked if name.suffix == ".py" and name.as_posix().startswith(LIGHT))
    parts = (name.with_suffix("").parts for name in python)
    return sorted(".".join(["samebits", *(p[:-1] if p[-1] == "__init__" else p)]) for p in parts if p[-1] != "__main__")


def test_the_help_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\nsys.argv = ['samebits', '--help']\nfrom samebits.server.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
    )
    loaded = loaded_after(code, tmp_path)
    assert "samebits" in loaded
    assert loaded & HEAVY == set()


def test_the_server_and_the_schema_load_nothing_heavy(tracked: list[Path], tmp_path: Path) -> None:
    modules = light_modules(tracked)
    assert any(name.startswith("samebits.server.") for name in modules)
    code = "\n".join(f"import {name}" for name in modules)
    assert loaded_after(code, tmp_path) & HEAVY == set()


def test_a_heavy_import_is_seen(tmp_path: Path) -> None:
    assert loaded_after("import samebits.tools.schema.base\nimport numpy", tmp_path) & HEAVY == {"numpy"}


def own_answers(folder: Path) -> list[str]:
    """Which of the top folders' names import code out of `folder` when an interpreter is started there."""
    code = (
        "import importlib.util, json, pathlib\nfound = []\n"
        "for name in ('kernels', 'tools', 'server', 'skill', 'tests'):\n"
        "    spec = importlib.util.find_spec(name)\n"
        "    if spec is not None and spec.origin and pathlib.Path.cwd() in pathlib.Path(spec.origin).parents:\n"
        "        found.append(name)\nprint(json.dumps(found))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return list(json.loads(run.stdout))


def test_no_folder_of_the_checkout_answers_for_a_foreign_package(root: Path, tmp_path: Path) -> None:
    assert own_answers(root) == []
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("")
    assert own_answers(tmp_path) == ["kernels"]
