"""What a resumed job is asked: its own request, with what a gate or a loop has done so far."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from samebits.server.jobs import resume
from samebits.server.jobs.index import Index
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import GateRequest, MinimizeRequest, Request, RlRequest

STOPPED = {"how": "stopped"}
DONE = {"state": "succeeded", "result": {"verdict": "unjudged", "summary": "some axes"}}


def again(jobs: Path, request: Request, **files: object) -> Request:
    """What resuming a job of these files asks for."""
    folder = jobs / "20260101-000000-job-aa"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "request.json").write_text(request.model_dump_json())
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    row = Index(jobs).get(folder.name)
    assert row is not None
    return resume.again(row, folder)


def test_any_request_is_asked_again_as_it_was(tmp_path: Path) -> None:
    request = MinimizeRequest(divergence="/somewhere/divergence", operator=3)
    assert again(tmp_path, request, ended=STOPPED) == request


def test_a_gate_takes_over_its_verdicts_where_it_wrote_some(tmp_path: Path) -> None:
    request = GateRequest.model_validate({"experiment": {}, "axes": ("repeat",), "resume": "/an/earlier/piece"})
    assert again(tmp_path, request, ended=STOPPED) == request, "no report: what it went on from stays"
    folder = tmp_path / "20260101-000000-job-aa"
    (folder / "gate").mkdir()
    (folder / "gate" / "manifest.json").write_text("{}")
    assert again(tmp_path, request, ended=STOPPED) == request.model_copy(update={"resume": str(folder)})


def test_a_gate_with_an_answer_goes_on_where_its_report_is(tmp_path: Path) -> None:
    request = GateRequest.model_validate({"experiment": {}})
    (tmp_path / "20260101-000000-job-aa" / "gate").mkdir(parents=True)
    (tmp_path / "20260101-000000-job-aa" / "gate" / "manifest.json").write_text("{}")
    found = again(tmp_path, request, result=DONE, ended={"how": "exited"})
    assert isinstance(found, GateRequest)
    assert found.resume == str(tmp_path / "20260101-000000-job-aa")


@pytest.mark.parametrize(("name", "goes_on"), [("checkpoint.pt", True), ("checkpoint.pt.part", False)])
def test_a_loop_goes_on_from_its_folder_where_it_holds_a_whole_checkpoint(
    name: str, goes_on: bool, tmp_path: Path
) -> None:
    place = tmp_path / "20260101-000000-job-aa" / "exact" / "lag-0"
    place.mkdir(parents=True)
    (place / name).touch()
    found = again(tmp_path, RlRequest.model_validate({"experiment": {}}), ended=STOPPED)
    assert isinstance(found, RlRequest)
    assert found.resume == (str(tmp_path / "20260101-000000-job-aa") if goes_on else "")


def test_what_has_its_answer_or_no_request_is_not_resumed(tmp_path: Path) -> None:
    request = MinimizeRequest(divergence="/somewhere/divergence")
    with pytest.raises(UserError, match=r"has its answer\. Next: `samebits jobs wait 2026"):
        again(tmp_path, request, result=DONE, ended={"how": "exited"})
    (tmp_path / "20260101-000000-job-aa" / "request.json").write_text('{"kind": "unheard of"}')
    with pytest.raises(UserError, match=r"its request cannot be read\. Next: ask for it anew"):
        resume.asked(tmp_path / "20260101-000000-job-aa")
