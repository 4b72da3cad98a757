"""The command line: exit codes, one clear error, nothing left behind. Verbs run in a real worker process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "samebits.server.cli.main"]


def samebits(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], cwd=cwd, capture_output=True, text=True, timeout=600, check=False)


def test_init_writes_a_file_once(tmp_path: Path) -> None:
    assert samebits("init", "--model", "here", cwd=tmp_path).returncode == 0
    assert 'model = "here"' in (tmp_path / "samebits.toml").read_text(encoding="utf-8")
    again = samebits("init", cwd=tmp_path)
    assert again.returncode == 2
    assert "exists already. Next: edit it, or remove it and run `samebits init` again" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("init", "--path", ""), "--path .: a folder, not a file. Next: name the file: --path samebits.toml"),
        (("init", "--path", "/proc/x.toml"), ". Next: give another --path\n"),
        (("init", "--path", "no/x.toml"), ". Next: make its folder, or give another --path\n"),
        (("build", ""), "candidate '': names nothing. Next: give a folder with candidate.toml"),
        (("minimize", "x", "--operator", "-1"), "Next: see `samebits minimize --help`"),
        (("diff", "--against", "moon", "-c", "with/samebits.toml"), "Next: see `samebits diff --help`"),
        (("measure", "py.toml"), "`samebits measure` takes no such argument. Next: give it as --config py.toml"),
        (("build", "rms_norm", "x.toml"), "`samebits build` takes no such argument. Next: see `samebits build --help`"),
    ],
)
def test_the_next_step_is_one_that_helps(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "with").mkdir()
    samebits("init", "--path", "with/samebits.toml", cwd=tmp_path)
    done = samebits(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert not (tmp_path / ".samebits").exists(), "nothing was started"


def test_init_says_whether_the_model_that_was_given_is_there(tmp_path: Path) -> None:
    assert "Next: there is no folder nope here" in samebits("init", "--model", "nope", cwd=tmp_path).stdout
    (tmp_path / "model").mkdir()
    assert "Next: `samebits inspect`" in samebits("init", "--model", "model", "--path", "b.toml", cwd=tmp_path).stdout
    assert "Next: set rollout.model" in samebits("init", "--path", "c.toml", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("measure", "-c", "nope.toml"),
        ("inspect", "--set", "foo"),
        ("demo", "--device", "tpu"),
        ("minimize", "none"),
        ("jobs", "wait", "none"),
        ("measure", "py.toml"),
        ("measure", "--bogus"),
        ("minimize",),
    ],
)
def test_with_json_a_mistake_is_a_failed_outcome_on_stdout_too(arguments: tuple[str, ...], tmp_path: Path) -> None:
    samebits("init", cwd=tmp_path)
    done = samebits(*arguments, "--json", cwd=tmp_path)
    outcome = json.loads(done.stdout)
    assert done.returncode == 2
    assert (outcome["state"], outcome["error"], outcome["job"]) == ("failed", "user", "")
    assert done.stderr == f"error: {outcome['message']}\n"
    assert samebits(*arguments, cwd=tmp_path).stdout == "", "without it stdout stays empty"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("measure",), "no experiment file"),
        (("measure", "-c", "missing.toml"), "missing.toml"),
        (("capture", "both"), "not one of the two"),
        (("diff", "--against", "nothing"), "against"),
        (("demo", "--device", "tpu"), "device"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    if arguments[0] in ("capture", "diff"):
        samebits("init", cwd=tmp_path)
    done = samebits(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Next:" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / ".samebits").exists(), "nothing was started"


def test_a_missing_model_folder_is_the_users_error_from_the_worker(tmp_path: Path) -> None:
    samebits("init", "--model", "nowhere", cwd=tmp_path)
    done = samebits("measure", "--set", "rollout.side=transformers", "--json", "-o", "job", cwd=tmp_path)
    assert done.returncode == 2
    outcome = json.loads(done.stdout)
    assert (outcome["state"], outcome["error"]) == ("failed", "user")
    assert "nowhere" in outcome["message"]
    assert not list((tmp_path / "job").glob("*.part"))
    assert not (tmp_path / "job/sides").exists(), "said before a side was started"


def test_cuda_where_torch_sees_none_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    samebits("init", "--model", "nowhere", cwd=tmp_path)
    for verb in (("measure", "--set", 'device="cuda"'), ("demo", "--device", "cuda")):
        done = samebits(*verb, "--json", "-o", f"job-{verb[0]}", cwd=tmp_path)
        assert done.returncode == 2
        assert 'device = "cuda": torch sees no GPU here' in json.loads(done.stdout)["message"]
        assert not (tmp_path / f"job-{verb[0]}/sides").exists(), "no side was started"


def test_an_existing_job_folder_is_refused(tmp_path: Path) -> None:
    samebits("init", "--model", "nowhere", cwd=tmp_path)
    (tmp_path / "job").mkdir()
    done = samebits("measure", "-o", "job", cwd=tmp_path)
    assert done.returncode == 2
    assert "exists already" in done.stderr


STAND_IN = """#!{python}
import json, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "{mark}"])
with open(sys.argv[-1] + "/events.jsonl", "a") as file:
    file.write(json.dumps(dict(time=time.time(), phase="stand-in", message="at work")) + "\\n")
time.sleep(600)
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_ending_the_command_ends_the_worker_and_what_it_started(tmp_path: Path, end: signal.Signals) -> None:
    """The worker's interpreter is a stand-in that starts a child and waits, since a real engine takes long to load."""
    mark = f"samebits-orphan-{os.getpid()}-{end}"
    stand_in = tmp_path / "python"
    stand_in.write_text(STAND_IN.format(python=sys.executable, mark=mark), encoding="utf-8")
    stand_in.chmod(0o755)
    samebits("init", "--model", "nowhere", cwd=tmp_path)
    process = subprocess.Popen(
        [*COMMAND, "measure", "-o", "job", "--set", f"pool.worker_python={stand_in}"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "stand-in: at work\n", "the command follows its job by now"
    assert _running(mark)
    process.send_signal(end)
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(120) == 2
    assert "stopped on request" in said
    assert f"{tmp_path / 'job'} keeps the record, the logs and what is whole. Next: run the command again" in said
    assert not _running(mark)


def _running(mark: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                return True
        except OSError:  # it ended while we looked
            continue
    return False
