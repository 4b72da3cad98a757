"""What gc spares of proposals; its other rules are tested through the command (tests/server/cli/test_jobs.py)."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from samebits.server.jobs.gc import APPROVED, WAITS, Collected, collect
from samebits.server.jobs.index import Index
from samebits.tools.schema import reviews
from samebits.tools.schema.results import Result, Succeeded

DAY_S = 86400.0


def ended(jobs: Path, name: str, request: dict[str, object], days: float, *, answered: bool = True) -> Path:
    """An ended job by its files alone."""
    folder = jobs / name
    folder.mkdir(parents=True)
    (folder / "request.json").write_text(json.dumps(request))
    (folder / "ended.json").write_text(json.dumps({"how": "returned" if answered else "stopped"}))
    if answered:
        (folder / "result.json").write_text(Succeeded(result=Result(verdict="done", summary="done")).model_dump_json())
    then = time.time() - days * DAY_S
    for path in folder.iterdir():
        os.utime(path, (then, then))
    return folder


def old(jobs: Path) -> Collected:
    """What would go of jobs older than a week."""
    return collect(Index(jobs), older_than_s=7 * DAY_S, keep_bytes=None, dry_run=True)


@pytest.mark.parametrize(
    ("decision", "applied", "why"),
    [
        (None, None, WAITS),
        ("approved", None, APPROVED),
        ("approved", False, APPROVED),
        ("approved", True, ""),
        ("rejected", None, ""),
    ],
)
def test_a_proposal_stays_until_it_is_rejected_or_applied(
    decision: str | None, applied: bool | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    jobs = tmp_path / "jobs"
    built = ended(jobs, "20260101-000000-build-aa", {"kind": "build"}, 30)
    made = ended(jobs, "20260101-000001-propose-bb", {"kind": "propose", "gate": f"{built}/candidate_gate"}, 30)
    (made / "proposal").mkdir()
    manifest = made / "proposal" / "manifest.json"
    manifest.write_text('{"kind": "proposal"}')
    if decision is not None:
        place = reviews.place(hashlib.sha256(manifest.read_bytes()).hexdigest())
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps({"decision": decision}))
    if applied is not None:
        asked = {"kind": "apply", "proposal": f"{made}/proposal"}
        ended(jobs, "20260101-000002-apply-cc", asked, 29, answered=applied)
    done = old(jobs)
    assert done.spared == ({made.name: why, built.name: f"{made.name} was made from it"} if why else {})
    assert (made.name in done.removed) == (not why)
