"""A project with proposals, a person at a terminal, and a browser where there is one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

HERE = Path(__file__).parent


def load(name: str, path: Path) -> ModuleType:
    """A helper; tests/ is no package."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


PERSON = load("samebits_review_person", HERE / "person.py")
BROWSER = load("samebits_review_browser", HERE / "browser.py")


@pytest.fixture(scope="session")
def kit() -> ModuleType:
    """The kit of tests/tools/propose."""
    return load("samebits_review_kit", HERE.parents[1] / "tools" / "propose" / "kit.py")


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("HOME", str(folder))
        for name in ("DISPLAY", "WAYLAND_DISPLAY"):
            patch.delenv(name, raising=False)
        yield folder


@pytest.fixture(scope="module")
def project(kit: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's repository with a candidate."""
    made: Path = kit.repository(tmp_path_factory.mktemp("review") / "project")
    return made


@pytest.fixture
def proposed(kit: ModuleType, project: Path) -> Callable[..., str]:
    """proposed(**changes): a new proposal; its id."""

    def make(**changes: Any) -> str:
        folder = kit.propose(project, **changes)
        return f"{folder.parent.name}/{folder.name}"

    return make


@pytest.fixture(scope="module")
def person(project: Path) -> Iterator[Any]:
    """`samebits review` in a terminal, shared by the tests of a module."""
    (project / ".samebits" / "jobs").mkdir(parents=True, exist_ok=True)
    with PERSON.Person(project) as at:
        yield at


@pytest.fixture
def at_terminal() -> Callable[..., Any]:
    """at_terminal(project, *arguments): `samebits review` in a terminal of its own."""
    made: Callable[..., Any] = PERSON.Person
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium. Where there is none the tests say so, and fail where it is required."""
    if BROWSER.chromium() is None:
        if BROWSER.required():
            pytest.fail("no chromium, and CI or SAMEBITS_REQUIRE_BROWSER=1 asks for it: install Debian's chromium")
        pytest.skip("not run: no chromium")
    with BROWSER.Browser() as found:
        yield found
