"""`samebits jobs` and `samebits gc`, as commands; the worker is the stand-in of tests/server/conftest.py."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from samebits.server.jobs import launch
from samebits.server.jobs.gc import collect
from samebits.server.jobs.index import Index
from samebits.tools.schema import reviews
from samebits.tools.schema.requests import MeasureRequest

pytestmark = pytest.mark.usefixtures("strays")
DAY_S = 86400


def samebits(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "samebits.server.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def made(jobs: Path, request: MeasureRequest, name: str, *, days: float = 0, size: int = 0) -> Path:
    """An ended job of that age and size."""
    running = launch.start(request, jobs / name, python=request.experiment.pool.worker_python)
    running.process.wait()
    assert running.outcome() is not None
    (jobs / name / "blob").write_bytes(b"\0" * size)
    then = time.time() - days * DAY_S
    for path in (jobs / name).iterdir():
        os.utime(path, (then, then))
    return jobs / name


def test_jobs_are_listed_waited_for_and_cancelled(
    project: Path,
    asked: Callable[..., MeasureRequest],
    eventually: Callable[..., None],
    at_work: Callable[[Path], bool],
) -> None:
    jobs = project / ".samebits" / "jobs"
    made(jobs, asked("sleep"), "20260101-000000-measure-aa")
    running = launch.start(asked("sleep", 600), jobs / "20260101-000001-measure-bb", python=str(project / "worker"))
    eventually(lambda: at_work(running.folder))
    assert Index(jobs).get(running.folder.name) is not None, "taken in by its name"
    listed = {row["job"]: row["state"] for row in json.loads(samebits("jobs", "--json").stdout)}
    assert listed == {"20260101-000000-measure-aa": "succeeded", "20260101-000001-measure-bb": "running"}
    waited = samebits("jobs", "wait", "20260101-000000-measure-aa")
    assert (waited.returncode, waited.stdout.startswith("equal: done")) == (0, True)
    assert samebits("jobs", "cancel", running.folder.name).stdout.endswith(": cancelled\n")
    eventually(lambda: running.outcome() is not None)
    gone = samebits("jobs", "wait", "no-such-job")
    assert (gone.returncode, "Next: see `samebits jobs`" in gone.stderr) == (2, True)


def test_gc_removes_by_age_then_by_size_and_never_what_runs(
    tmp_path: Path,
    asked: Callable[..., MeasureRequest],
    eventually: Callable[..., None],
    at_work: Callable[[Path], bool],
) -> None:
    jobs = tmp_path / "jobs"
    for name, days, size in (("a", 30, 10), ("b", 3, 1 << 20), ("c", 2, 1 << 20), ("d", 1, 1 << 20)):
        made(jobs, asked("sleep"), f"20260101-000000-measure-{name}", days=days, size=size)
    running = launch.start(
        asked("sleep", 600), jobs / "20260101-000000-measure-e", python=asked("").experiment.pool.worker_python
    )
    eventually(lambda: at_work(running.folder))
    index = Index(jobs)
    tried = collect(index, older_than_s=14 * DAY_S, keep_bytes=None, dry_run=True)
    assert [job[-1] for job in tried.removed] == ["a"]
    assert len(list(jobs.glob("2026*"))) == 5, "a dry run removes nothing"
    assert collect(index, older_than_s=14 * DAY_S, keep_bytes=None).removed == tried.removed
    by_size = collect(index, older_than_s=None, keep_bytes=int(1.5 * (1 << 20)))
    assert [job[-1] for job in by_size.removed] == ["b", "c"]
    assert collect(index, older_than_s=0, keep_bytes=0).kept == 0
    assert [row.id[-1] for row in index.rows()] == ["e"]
    assert {path.name[-1] for path in jobs.glob("*measure*")} == {"e"}
    running.stop()


def test_a_job_that_was_stopped_is_resumed_in_a_folder_that_names_it(
    project: Path,
    asked: Callable[..., MeasureRequest],
    eventually: Callable[..., None],
    at_work: Callable[[Path], bool],
) -> None:
    jobs = project / ".samebits" / "jobs"
    running = launch.start(asked("segfault"), jobs / "20260101-000000-measure-aa", python=str(project / "worker"))
    eventually(lambda: running.outcome() is not None)
    stopped = launch.start(asked("sleep", 600), jobs / "20260101-000001-measure-bb", python=str(project / "worker"))
    eventually(lambda: at_work(stopped.folder))
    busy = samebits("jobs", "resume", stopped.folder.name)
    assert (busy.returncode, "has not ended (running). Next: wait for it" in busy.stderr) == (2, True)
    stopped.stop()
    assert f"measure is cancelled. Next: `samebits jobs resume {stopped.folder.name}`" in " ".join(
        samebits("jobs", "wait", stopped.folder.name).stderr.split()
    )
    asked_again = json.loads((stopped.folder / "request.json").read_text())
    asked_again["experiment"]["rollout"]["engine"]["value"] = 0
    (stopped.folder / "request.json").write_text(json.dumps(asked_again))
    done = samebits("jobs", "resume", stopped.folder.name, "--json")
    assert done.returncode == 0, done.stderr
    folder = Path(json.loads(done.stdout)["job"])
    assert folder != stopped.folder
    assert json.loads((folder / "request.json").read_text()) == asked_again
    listed = {row["job"]: row.get("resumes") for row in json.loads(samebits("jobs", "--json").stdout)}
    assert listed[folder.name] == stopped.folder.name
    assert samebits("jobs", "resume", running.folder.name, "-o", "mine").returncode == 2, "it crashes again"
    assert (project / "mine" / "resumes").read_text() == running.folder.name
    answered = samebits("jobs", "resume", folder.name)
    assert (answered.returncode, "has its answer" in answered.stderr) == (2, True)


def ended(jobs: Path, name: str, request: dict[str, object], days: float) -> Path:
    """An ended job by its files alone."""
    folder = jobs / f"20260101-00000{len(list(jobs.glob('2026*')))}-{name}"
    folder.mkdir(parents=True)
    (folder / "request.json").write_text(json.dumps(request))
    (folder / "ended.json").write_text('{"how": "stopped"}')
    then = time.time() - days * DAY_S
    for path in folder.iterdir():
        os.utime(path, (then, then))
    return folder


def test_gc_spares_what_waits_for_a_person_and_what_a_job_that_stays_was_made_from(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    jobs = project / ".samebits" / "jobs"
    measured = ended(jobs, "measure-aa", {"kind": "measure"}, 30)
    diffed = ended(jobs, "diff-bb", {"kind": "diff", "rollout": f"{measured}/rollout"}, 20)
    ended(jobs, "minimize-cc", {"kind": "minimize", "divergence": f"{diffed}/divergence"}, 1)
    built = ended(jobs, "build-dd", {"kind": "build"}, 30)
    proposed = ended(jobs, "propose-ee", {"kind": "propose", "gate": f"{built}/candidate_gate"}, 30)
    (proposed / "proposal").mkdir()
    manifest = proposed / "proposal" / "manifest.json"
    manifest.write_text('{"kind": "proposal"}')
    ended(jobs, "measure-ff", {"kind": "measure", "rollout": "/elsewhere/rows.jsonl"}, 30)
    tried = samebits("gc", "--older-than", "14", "--dry-run").stdout.splitlines()
    assert [line[-10:] for line in tried if " " not in line] == ["measure-ff"]
    assert sorted(line.partition("-")[2].partition("-")[2] for line in tried if " stays: " in line) == [
        "build-dd stays: 20260101-000004-propose-ee was made from it",
        "diff-bb stays: 20260101-000002-minimize-cc was made from it",
        "measure-aa stays: 20260101-000001-diff-bb was made from it",
        "propose-ee stays: its proposal waits for a person's decision",
    ]
    assert tried[-1] == "4 of them only because they are needed; --needed-too removes those, too"
    decision = reviews.place(hashlib.sha256(manifest.read_bytes()).hexdigest())
    decision.parent.mkdir(parents=True)
    decision.write_text("{}")
    samebits("gc", "--older-than", "14")
    kept = {path.name[16:] for path in jobs.glob("2026*")}
    assert kept == {"measure-aa", "diff-bb", "minimize-cc"}, "decided: it goes, and its gate with it"
    samebits("gc", "--older-than", "14", "--needed-too")
    assert {path.name[16:] for path in jobs.glob("2026*")} == {"minimize-cc"}


def test_gc_takes_folders_that_never_became_a_job_once_they_are_old(project: Path) -> None:
    jobs = project / ".samebits" / "jobs"
    for name, hours in (("old", 2), ("young", 0)):
        (jobs / name).mkdir(parents=True)
        (jobs / name / "request.json.part").write_text("{")
        then = time.time() - hours * 3600
        os.utime(jobs / name, (then, then))
    samebits("gc", "--older-than", "14", "--dry-run")
    assert {path.name for path in jobs.iterdir() if path.is_dir()} == {"old", "young"}
    samebits("gc", "--older-than", "14")
    assert {path.name for path in jobs.iterdir() if path.is_dir()} == {"young"}


def test_a_job_with_a_folder_of_its_own_is_listed_and_found_by_name_and_by_path(project: Path, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere" / "mine"
    assert samebits("measure", "-o", str(place)).returncode == 0
    assert [(row["job"], row["kind"]) for row in json.loads(samebits("jobs", "--json").stdout)] == [("mine", "measure")]
    for named in ("mine", "../elsewhere/mine"):
        waited = samebits("jobs", "wait", named)
        assert (waited.returncode, waited.stdout.startswith("equal: done")) == (0, True), waited
    assert "has ended already" in samebits("jobs", "cancel", str(place)).stderr
    assert samebits("measure", "-o", str(tmp_path / "other" / "mine")).returncode == 0, "the name is taken: lengthened"
    jobs = Index(project / ".samebits" / "jobs")
    assert sorted(row.id[:4] for row in jobs.rows()) == ["mine", "mine"]
    assert collect(jobs, older_than_s=0, keep_bytes=0).removed == (), "the folder is its maker's"
    assert (place / "result.json").is_file()
    again = samebits("jobs", "wait", str(tmp_path))
    assert (again.returncode, "not among this project's jobs" in again.stderr) == (2, True)


def test_a_folder_made_again_is_a_new_job(project: Path, tmp_path: Path) -> None:
    place = tmp_path / "mine"
    samebits("measure", "-o", str(place))
    assert "succeeded" in samebits("jobs").stdout
    shutil.rmtree(place)
    assert samebits("measure", "-o", str(place), "--set", "rollout.engine.do=segfault").returncode == 2
    assert [row["state"] for row in json.loads(samebits("jobs", "--json").stdout)] == ["failed"]


def test_ids_are_whole_lines_of_a_narrow_terminal_or_pipe(
    project: Path, asked: Callable[..., MeasureRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "20260101-000000-measure-aa"
    made(project / ".samebits" / "jobs", asked("sleep"), name)
    monkeypatch.setenv("COLUMNS", "20")
    assert samebits("jobs").stdout.splitlines()[1].startswith(f"{name}  succeeded  ")


def test_looking_at_jobs_makes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert samebits("jobs", "--json").stdout == "[]\n"
    assert samebits("jobs").returncode == 0
    assert samebits("jobs", "wait", "none").returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_gc_without_a_limit_is_refused(project: Path) -> None:
    done = samebits("gc")
    assert done.returncode == 2
    assert "Next: for example --older-than" in done.stderr
