"""What the benchmarks share: the checkout as samebits on a machine where it is not installed."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ASK = (
    "import importlib.metadata as m, json, samebits.kernels.contract_version as v;"
    "points = m.entry_points(group='vllm.general_plugins');"
    "ours = [[p.name, p.value] for p in points if p.name == 'samebits'];"
    "print(json.dumps([v.__file__, m.version('samebits'), ours]))"
)


@pytest.fixture(scope="module")
def common() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "benchmarks" / "common.py"))


def bare(env: dict[str, str], code: str = ASK) -> subprocess.CompletedProcess[str]:
    """A Python without site-packages: nothing that was installed is there."""
    return subprocess.run(
        [sys.executable, "-S", "-c", code], env=env, cwd="/", capture_output=True, text=True, check=False
    )


def test_the_checkout_is_samebits_without_an_installation(common: dict[str, Any], tmp_path: Path) -> None:
    without = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    assert "No module named 'samebits'" in bare(without).stderr, "nothing would be shown by what follows"
    for _ in range(2):
        env = common["linked"](tmp_path / "links")
        done = bare(env)
        assert done.returncode == 0, done.stderr
        place, version, points = json.loads(done.stdout)
        assert Path(place).resolve() == ROOT / "kernels" / "contract_version.py"
        assert version == "0.1.0"
        assert points == [["samebits", "samebits.tools.sides.vllm.plugin:register"]]


def test_version_and_entry_points_are_those_of_the_checkout(common: dict[str, Any], tmp_path: Path) -> None:
    other = tmp_path / "other"
    for name in ("server", "tools", "kernels", "skill"):
        (other / name).mkdir(parents=True)
    (other / "kernels" / "contract_version.py").write_text("")
    (other / "pyproject.toml").write_text(
        '[project]\nname = "samebits"\nversion = "9.9"\n[project.scripts]\nsamebits = "a:b"\n'
        '[project.entry-points."vllm.general_plugins"]\nsamebits = "x.y:z"\n'
    )
    common["linked"](tmp_path / "links")
    env = common["linked"](tmp_path / "links", other)
    done = bare(env)
    place, version, points = json.loads(done.stdout)
    assert Path(place).resolve().is_relative_to(other), "the links still lead to the first checkout"
    assert (version, points) == ("9.9", [["samebits", "x.y:z"]])


def test_a_model_is_written_once_and_another_in_its_place_is_refused(common: dict[str, Any], tmp_path: Path) -> None:
    env = common["linked"](tmp_path / "links")
    folder = tmp_path / "model"
    common["write_model"](folder, "tiny", "cpu", env, 1)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    common["write_model"](folder, "tiny", "cpu", env, 1)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 1
    with pytest.raises(SystemExit, match="another model"):
        common["write_model"](folder, "tiny", "cpu", env, 2)
    (folder / "ready").unlink()
    with pytest.raises(SystemExit, match="half a one"):
        common["write_model"](folder, "tiny", "cpu", env, 1)


def test_any_command_runs_linked(tmp_path: Path) -> None:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "benchmarks/linked.py", sys.executable, "-S", "-c", ASK]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    helped = subprocess.run(
        [*command[:2], "samebits", "--help"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert helped.returncode == 0, helped.stderr
    assert "rollout" in helped.stdout


def test_what_runs_linked_hears_ctrl_c_also_in_the_background_of_a_shell(tmp_path: Path) -> None:
    ask = [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"]

    def heard(*before: str) -> str:
        # As a shell starts what stands before a "&".
        deaf = (
            "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
        )
        command = [sys.executable, "-c", deaf, *before, *ask]
        env = os.environ | {"TMPDIR": str(tmp_path)}
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout.strip()

    assert heard() == "False", "the control"
    assert heard(sys.executable, "benchmarks/linked.py") == "True"
