"""`samebits gate` as CI calls it: exit codes, JUnit and lock, also without a verdict. Real worker and trainer."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

COMMAND = [sys.executable, "-m", "samebits.server.cli.main"]
SIDES = Path(__file__).parents[2] / "tools" / "gate" / "regression"
EXPERIMENT = """
device = "cpu"
[rollout]
side = "file:rows.jsonl"
model = "model"
[trainer]
side = "python:steady_side:factory"
dtype = "float32"
[gate]
min_tokens = 4
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment whose rollout is a file of rows with made-up logprobs."""
    folder = tmp_path_factory.mktemp("gate")
    spec = importlib.util.spec_from_file_location("steady_writer", SIDES / "steady_side.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write(folder / "model")
    rows = [{"prompt_ids": [n, 2], "sampled_ids": [3, 4], "logprobs": [-1.0, -2.0]} for n in range(4)]
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    (folder / "samebits.toml").write_text(EXPERIMENT, encoding="utf-8")
    return folder


def gate(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(SIDES)}
    return subprocess.run(
        [*COMMAND, "gate", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def suite(path: Path) -> ElementTree.Element:
    return ElementTree.parse(path).getroot()[0]


def test_green_exits_0_and_leaves_junit_and_a_lock(place: Path) -> None:
    done = gate("--axes", "trainer_repeat,batch", "--junit", "green.xml", "--out", "green", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["result"]["verdict"] == "equal"
    assert (suite(place / "green.xml").get("failures"), suite(place / "green.xml").get("skipped")) == ("0", "1")
    assert json.loads((place / "samebits.lock").read_text(encoding="utf-8"))["axes"] == {"trainer_repeat": 8}
    assert (place / "green" / "gate" / "report.html").is_file()


def test_red_exits_1_and_writes_no_lock(place: Path) -> None:
    done = gate("--axes", "trainer_rollout", "--junit", "red.xml", "--lock", "red.lock", "--out", "red", cwd=place)
    assert done.returncode == 1, done.stderr
    assert "trainer_rollout" in done.stdout
    assert suite(place / "red.xml").get("failures") == "1"
    assert not (place / "red.lock").exists()


def test_pieces_merge_and_two_reports_stand_side_by_side(place: Path) -> None:
    one = gate("--axes", "trainer_repeat", "--out", "one", cwd=place)
    two = gate("--axes", "gradients,batch", "--resume", "one", "--out", "two", "--json", cwd=place)
    assert (one.returncode, two.returncode) == (0, 0), one.stderr + two.stderr
    rows = {row["axis"]: row["outcome"] for row in json.loads(two.stdout)["result"]["rows"]}
    assert rows == {"batch": "not run", "trainer_repeat": "exact", "gradients": "exact"}
    assert set(json.loads((place / "samebits.lock").read_text())["axes"]) == {"trainer_repeat", "gradients"}
    same = gate("--compare", "one", "two", "--out", "page.html", cwd=place)
    assert same.returncode == 0, same.stderr
    assert "nothing got worse" in (place / "page.html").read_text(encoding="utf-8")
    back = gate("--compare", "two", "one", "--json", cwd=place)
    assert (back.returncode, json.loads(back.stdout)["verdict"]) == (1, "differs")
    gate("--axes", "trainer_rollout", "--resume", "one", "--out", "three", cwd=place)
    red = gate("--compare", "one", "three", "--out", "red.html", "--json", cwd=place)
    assert (red.returncode, json.loads(red.stdout)["summary"].split("; ")[0]) == (1, "red: trainer_rollout")
    none = gate("--compare", "one", "nowhere", cwd=place)
    assert none.returncode == 2
    assert "nowhere: no regression artifact here" in none.stderr


def test_a_gate_of_fewer_axes_leaves_the_lock_as_it_is_and_says_so(place: Path) -> None:
    lock = place / "kept.lock"
    assert gate("--axes", "trainer_repeat,gradients", "--lock", "kept.lock", "--out", "all", cwd=place).returncode == 0
    before = lock.read_bytes()
    assert set(json.loads(before)["axes"]) == {"trainer_repeat", "gradients"}
    part = gate("--axes", "trainer_repeat", "--lock", "kept.lock", "--out", "part", cwd=place)
    assert (part.returncode, lock.read_bytes()) == (0, before), part.stderr
    assert "kept.lock left as it is: it also proves gradients" in part.stdout
    assert f"--axes gradients --resume {place / 'part'}" in part.stdout


def test_without_a_verdict_it_exits_2_and_junit_holds_one_error(place: Path) -> None:
    done = gate("--axes", "bach", "--junit", "none.xml", "--lock", "none.lock", "--out", "none", cwd=place)
    assert done.returncode == 2
    assert "Next:" in done.stderr
    assert (suite(place / "none.xml").get("tests"), suite(place / "none.xml").get("errors")) == ("1", "1")
    assert not (place / "none.lock").exists()


def test_tiny_brings_its_own_experiment(tmp_path: Path) -> None:
    done = gate("--tiny", "qwen3", "--set", "device=cpu", cwd=tmp_path)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "brings its own experiment" in done.stderr
    assert gate("--tiny", "gpt2", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize("option", ["--junit", "--lock"])
def test_a_file_that_could_not_be_written_is_refused_before_the_work(option: str, tmp_path: Path) -> None:
    done = gate("--tiny", "qwen3", option, "missing/file", cwd=tmp_path)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "missing/file: no file can be written there" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tiny", "qwen3", "--config", "elsewhere"), "--tiny: brings its own experiment"),
        (("--compare", "a", "b", "--axes", "batch", "--tiny", "qwen3"), "--axes --tiny: --compare runs nothing"),
        (("--axes", ""), '--axes "": names no axis'),
        (("--axes", ","), "names no axis"),
    ],
)
def test_an_option_that_would_mean_nothing_is_refused(arguments: tuple[str, ...], said: str, place: Path) -> None:
    done = gate(*arguments, cwd=place)
    assert done.returncode == 2
    assert said in done.stderr
