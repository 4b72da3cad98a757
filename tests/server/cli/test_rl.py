"""`samebits rl`: what it refuses before any model is loaded, and what it asks of the worker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "samebits.server.cli.main", "rl"]


def rl(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], cwd=cwd, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no experiment file here"),
        (("--tiny", "gpt"), "rl.family: must be 'qwen3', 'qwen3_tied', 'llama' or 'qwen3_moe'"),
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


STAND_IN = """#!{python}
import json, pathlib, sys, time
loop = pathlib.Path(sys.argv[-1], "stock", "lag-0")
loop.mkdir(parents=True)
(loop / "{made}").touch()
with open(sys.argv[-1] + "/events.jsonl", "a") as file:
    file.write(json.dumps(dict(time=time.time(), phase="stand-in", message="at work")) + "\\n")
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("made", "following"),
    [("checkpoint.pt", "samebits rl --resume {job}\n"), ("checkpoint.pt.part", "run the command again\n")],
)
def test_a_stopped_run_names_the_command_that_goes_on_from_its_checkpoint(
    tmp_path: Path, made: str, following: str
) -> None:
    """The worker's interpreter is a stand-in that leaves a file and waits: no model is trained."""
    stand_in = tmp_path / "python"
    stand_in.write_text(STAND_IN.format(python=sys.executable, made=made), encoding="utf-8")
    stand_in.chmod(0o755)
    arguments = ("--tiny", "qwen3", "--set", f"pool.worker_python={stand_in}", "-o", "job")
    process = subprocess.Popen([*COMMAND, *arguments], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "stand-in: at work\n", "the command follows its job by now"
    process.send_signal(signal.SIGTERM)
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(120) == 2
    assert said.endswith("Next: " + following.format(job=tmp_path / "job"))


def test_resume_takes_the_settings_from_the_folder_and_refuses_what_differs(tmp_path: Path) -> None:
    """No worker comes up: its interpreter is /bin/true."""
    no_worker = ("--set", "pool.worker_python=/bin/true")
    rl("--tiny", "llama", "--stale", "--set", "rl.steps=7", *no_worker, "-o", "rl1", cwd=tmp_path)
    before = json.loads((tmp_path / "rl1/request.json").read_text())
    rl("--resume", "rl1", "-o", "again", cwd=tmp_path)
    assert json.loads((tmp_path / "again/request.json").read_text()) == before | {"resume": str(tmp_path / "rl1")}
    same = ("--tiny", "llama", "--stale", "--set", "rl.steps=7", "--set", "pool.time_limit_s=60")
    rl("--resume", "rl1", *same, "-o", "same", cwd=tmp_path)
    now = json.loads((tmp_path / "same/request.json").read_text())["experiment"]
    assert now["pool"].pop("time_limit_s") == 60
    del before["experiment"]["pool"]["time_limit_s"]
    assert now == before["experiment"], "the pool may change, and a setting may be given again"
    for options, said in (
        (("--set", "rl.steps=8"), "rl.steps = 8: the run in rl1 has 7. Next: leave out what differs"),
        (("--tiny", "qwen3"), 'rl.family = "qwen3": the run in rl1 has "llama"'),
        (("--gpu",), 'device = "cuda": the run in rl1 has "auto"'),
        (("--corrections",), "--corrections: the run in rl1 is of another kind (stale)"),
        (("--config", "nothing.toml"), "no experiment file here"),
    ):
        done = rl("--resume", "rl1", *options, "-o", "refused", cwd=tmp_path)
        assert done.returncode == 2
        assert said in done.stderr
        assert not (tmp_path / "refused").exists()
    assert "no job of samebits rl (no such folder)" in rl("--resume", "nowhere", cwd=tmp_path).stderr
    request = tmp_path / "other/request.json"
    request.parent.mkdir()
    said = {
        '{"kind": "gate"}': "a job of samebits gate",
        '{"kind": "rl"}': "another version of samebits",
        "no JSON": "its request.json holds no request",
    }
    for text, reason in said.items():
        request.write_text(text)
        done = rl("--resume", "other", cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert reason in done.stderr
