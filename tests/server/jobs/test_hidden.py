"""`.samebits/` is not git's: whoever makes it writes a .gitignore into it, once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from samebits.server.jobs import hidden, launch
from samebits.server.jobs.index import Index
from samebits.server.jobs.links import listed
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import DemoRequest


def by_a_job(project: Path) -> None:
    launch.prepare(DemoRequest(), project / ".samebits" / "jobs" / "one")


def by_the_index(project: Path) -> None:
    Index(project / ".samebits" / "jobs").close()


def by_a_link(project: Path) -> None:
    out = project.parent / "out"
    with listed(out):
        launch.prepare(DemoRequest(), out)
    assert not (project.parent / ".gitignore").exists()


@pytest.mark.parametrize("make", [by_a_job, by_the_index, by_a_link])
def test_git_sees_nothing_of_it_whoever_makes_it(make: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    subprocess.run(["git", "init", "-q"], check=True)
    assert callable(make)
    make(project)
    assert (project / ".samebits" / "jobs").is_dir()
    seen = subprocess.run(["git", "status", "--porcelain", "-uall"], check=True, capture_output=True, text=True)
    assert seen.stdout == ""
    (project / "other").touch()
    seen = subprocess.run(["git", "status", "--porcelain", "-uall"], check=True, capture_output=True, text=True)
    assert seen.stdout == "?? other\n", "git does look here"


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    jobs = tmp_path / ".samebits" / "jobs"
    jobs.mkdir(parents=True)
    (jobs.parent / ".gitignore").write_text("!jobs\n")
    hidden.make(jobs)
    assert (jobs.parent / ".gitignore").read_text() == "!jobs\n"


def test_a_folder_elsewhere_gets_none(tmp_path: Path) -> None:
    launch.prepare(DemoRequest(), tmp_path / "runs" / "one")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["one"]


def test_a_file_in_the_place_of_the_jobs_is_no_job_that_exists(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as caught:
        launch.prepare(DemoRequest(), tmp_path / "file" / "one")
    assert "exists already" not in str(caught.value)
    assert str(tmp_path / "file") in str(caught.value)
