"""The wheel holds what the tree holds, and a skill whose links still lead somewhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path

import pytest
from packaging.metadata import parse_email

FOLDERS = ("server", "tools", "kernels", "skill")
SKILL = Path("SKILL.md")


def expected_names(tracked: Collection[Path]) -> set[str]:
    names = {name.as_posix() for name in tracked if name.parts[0] in FOLDERS}
    if SKILL in tracked:
        names.add("skill/SKILL.md")
    return {f"samebits/{name}" for name in names}


def package_names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name and not name.endswith("/")}


def differences(wheel: Path, tracked: Collection[Path]) -> list[str]:
    """`-name` for what the wheel misses, `+name` for what it has too much."""
    want, have = expected_names(tracked), package_names(wheel)
    return sorted([f"-{name}" for name in want - have] + [f"+{name}" for name in have - want])


def copy_tree(root: Path, tracked: Iterable[Path], to: Path) -> Path:
    for name in tracked:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, to / name)
    return to


def build(tree: Path) -> tuple[Path, Path]:
    """sdist and wheel; the wheel is built from the sdist, which so proves that it holds enough."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tree / "dist"), str(tree)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    return next((tree / "dist").glob("*.tar.gz")), next((tree / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def built(root: Path, tracked: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(copy_tree(root, tracked, tmp_path_factory.mktemp("tree")))


def test_the_wheel_holds_the_tree_and_nothing_else(built: tuple[Path, Path], tracked: list[Path]) -> None:
    _, wheel = built
    assert differences(wheel, tracked) == []
    assert {name.split("/")[0] for name in package_names(wheel)} == {"samebits"}


def test_a_missing_and_a_foreign_file_are_seen(built: tuple[Path, Path], tracked: list[Path], tmp_path: Path) -> None:
    _, wheel = built
    changed = tmp_path / "changed.whl"
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            if name != "samebits/server/py.typed":
                new.writestr(name, old.read(name))
        new.writestr("tests/planted.py", "")
    assert differences(changed, tracked) == ["+tests/planted.py", "-samebits/server/py.typed"]


def test_the_sdist_holds_the_tests_and_the_licence(built: tuple[Path, Path]) -> None:
    sdist, _ = built
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "Makefile", "setup.py", "tests/layout/test_wheel.py"} <= names


def test_the_links_of_the_skill_hold_in_the_wheel(
    built: tuple[Path, Path], tracked: list[Path], tmp_path: Path
) -> None:
    assert SKILL in tracked
    _, wheel = built
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    skill = tmp_path / "samebits" / "skill"
    page = (skill / "SKILL.md").read_text(encoding="utf-8")
    assert "](skill/" not in page
    targets = [part.partition(")")[0].partition("#")[0] for part in page.split("](")[1:]]
    relative = [target for target in targets if target and "://" not in target]
    assert relative, "SKILL.md links to no reference"
    assert [target for target in relative if not (skill / target).is_file()] == []


def test_the_wheel_declares_the_licence_and_no_heavy_dependency(built: tuple[Path, Path]) -> None:
    _, wheel = built
    with zipfile.ZipFile(wheel) as archive:
        texts = {name.rpartition("/")[2]: name for name in archive.namelist() if ".dist-info/" in name}
        metadata, _ = parse_email(archive.read(texts["METADATA"]))
    assert metadata["license_expression"] == "Apache-2.0"
    assert "LICENSE" in texts
    base = [line for line in metadata["requires_dist"] if "extra ==" not in line]
    assert not [line for line in base if line.startswith(("torch", "vllm", "transformers", "triton", "numpy"))]
