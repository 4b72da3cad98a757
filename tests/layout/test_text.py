"""Words that no tracked file may hold: hosts of package registries, and places on one machine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

# In two halves, so that this file does not hold them.
HALVES = (
    ("pypi", r"\.org"),
    ("python", r"hosted\.org"),
    ("registry\\.npm", r"js\.org"),
    ("npmjs", r"\.(com|org)"),
    ("deb\\.deb", r"ian\.org"),
    ("proxy\\.go", r"lang\.org"),
    ("(?<![\\w.])/wo", r"rk/"),
    ("/opt/(py", r"pi|wheels)"),
    ("/ro", r"ot/"),
    ("/home/", r"[a-z]+/"),
    ("/tmp/", r"(bash_jobs|dx)"),
)
FORBIDDEN = re.compile("|".join(first + second for first, second in HALVES), re.IGNORECASE)


def forbidden_words(root: Path, names: Iterable[Path]) -> list[str]:
    found = []
    for name in names:
        text = (root / name).read_bytes().decode("utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            match = FORBIDDEN.search(line)
            if match:
                found.append(f"{name}:{number} {match.group(0)}")
    return found


def not_ascii(root: Path, names: Iterable[Path]) -> list[str]:
    python = (name for name in names if name.suffix == ".py")
    return [str(name) for name in python if not (root / name).read_bytes().isascii()]


def test_no_file_names_a_registry_host_or_a_place_on_one_machine(root: Path, tracked: list[Path]) -> None:
    assert forbidden_words(root, tracked) == []


@pytest.mark.parametrize(
    "line",
    [
        "see https://py" + "pi.org/project/x",
        "files.python" + "hosted.org",
        "registry.npm" + "js.org/x",
        "cd /wo" + "rk/main",
        "/opt/py" + "pi/simple",
        "/ro" + "ot/.cache",
    ],
)
def test_a_planted_word_is_seen(tmp_path: Path, line: str) -> None:
    (tmp_path / "page.md").write_text(f"first\n{line}\n")
    assert len(forbidden_words(tmp_path, [Path("page.md")])) == 1


def test_ordinary_words_pass(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("how samebits/work/flows, the home/user, pip's index, download.pytorch.org\n")
    assert forbidden_words(tmp_path, [Path("page.md")]) == []


def test_python_sources_are_ascii(root: Path, tracked: list[Path], tmp_path: Path) -> None:
    assert not_ascii(root, tracked) == []
    (tmp_path / "planted.py").write_text("x = '\N{EM DASH}'\n")
    assert not_ascii(tmp_path, [Path("planted.py")]) == ["planted.py"]
