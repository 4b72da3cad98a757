"""`samebits rl`: what it refuses before any model is loaded, and what it asks of the worker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "samebits.server.cli.main", "rl"]


def rl(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no experiment file here"),
        (("--tiny", "gpt"), "rl.family"),
        (("--tiny", "qwen3", "--corrections", "--stale"), "are two different runs"),
        (("--tiny", "qwen3", "--set", "rl.group=1"), "rl.group"),
        (("--tiny", "qwen3", "--set", "rl.correction=most"), "rl.correction"),
    ],
)
def test_bad_input_is_refused_in_one_line_before_a_job_exists(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = rl(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_the_worker_refuses_comes_back_whole(tmp_path: Path) -> None:
    """No model is loaded for it."""
    greedy = rl("--tiny", "qwen3", "--stale", "--set", "workload.temperature=0", "--json", "-o", "job", cwd=tmp_path)
    assert greedy.returncode == 2
    assert "samples from the whole distribution" in json.loads(greedy.stdout)["message"]
    request = json.loads((tmp_path / "job/request.json").read_text())
    assert (request["kind"], request["what"], request["experiment"]["rl"]["family"]) == ("rl", "stale", "qwen3")
