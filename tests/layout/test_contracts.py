"""The import contracts hold, and each of them can fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SERVER = "server imports tools.schema and tools.report alone"
SMALL_TREE = {
    "server/cli/main.py": "from samebits.tools.schema import base\n",
    "tools/schema/base.py": "",
    "tools/report/page.py": "from samebits.tools.schema import base\n",
    "tools/sides/engine.py": "import vllm\n",
    "tools/capture/rows.py": "from samebits.kernels.ops import norm\n",
    "tools/worker.py": "",
    "kernels/ops/norm.py": "",
    "kernels/adapters/models.py": "import transformers\n",
}
PLANTED = {
    (
        "server/cli/main.py",
        "from samebits.tools.capture import rows",
    ): SERVER,
    ("server/cli/main.py", "from samebits.tools import worker"): SERVER,
    (
        "server/cli/main.py",
        "from samebits.kernels.ops import norm",
    ): SERVER,
    (
        "tools/schema/base.py",
        "from samebits.tools.report import page",
    ): "tools.schema and tools.report",
    ("tools/report/page.py", "def f():\n    import torch"): "the light process stays light",
    ("tools/capture/rows.py", "from samebits.server.cli import main"): "nothing imports server",
    ("kernels/ops/norm.py", "from samebits.tools.schema import base"): "kernels import nothing of ours",
    ("kernels/ops/norm.py", "def f():\n    import vllm.envs"): "internals of vllm and transformers",
}


def broken_contracts(tree: Path) -> list[str]:
    subprocess.run([sys.executable, "scripts/links.py"], cwd=tree, check=True)
    run = subprocess.run(
        [sys.executable, "scripts/contracts.py"], cwd=tree, capture_output=True, text=True, check=False
    )
    assert "Contracts: " in run.stdout, run.stdout + run.stderr
    return [line.partition(" BROKEN")[0] for line in run.stdout.splitlines() if " BROKEN" in line]


@pytest.fixture
def small_tree(root: Path, tmp_path: Path) -> Path:
    for name, text in SMALL_TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "skill").mkdir()
    shutil.copytree(root / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(root / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_contracts_hold(root: Path) -> None:
    assert broken_contracts(root) == []


def test_a_tree_that_keeps_them_passes(small_tree: Path) -> None:
    assert broken_contracts(small_tree) == []


@pytest.mark.parametrize(("file", "line"), list(PLANTED), ids=lambda text: text.split()[-1])
def test_a_planted_import_breaks_its_contract(small_tree: Path, file: str, line: str) -> None:
    with (small_tree / file).open("a") as source:
        source.write(line + "\n")
    broken = broken_contracts(small_tree)
    assert len(broken) == 1
    assert broken[0].startswith(PLANTED[file, line])
