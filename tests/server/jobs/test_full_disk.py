"""What a full disk leaves possible: removing old jobs above all. The disk is a real file system of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
from tests.full_disk import FILL

COLLECT = (
    FILL
    + """
import sqlite3, time
from samebits.server.jobs.gc import collect
from samebits.server.jobs.index import FILE, Index
root, listed = Path(".samebits/jobs").resolve(), sys.argv[1] == "listed"

def made(name, size):
    (root / name).mkdir(parents=True)
    (root / name / "blob").write_bytes(b"x" * size)
    (root / name / "request.json").write_text('{"kind": "measure"}')
    (root / name / "ended.json").write_text('{"how": "stopped"}')

made("20260101-000000-measure-a", 200_000)
if listed:
    Index(root).close()
made("20260101-000001-measure-b", 10_000)
fill()
try:
    connection = sqlite3.connect(root / FILE, isolation_level=None)
    connection.execute("CREATE TABLE control (x)")
    said = "no error"
except sqlite3.OperationalError as error:
    said = str(error)
connection.close()
if not listed:
    (root / FILE).unlink()
    fill()
rounds = []
for _ in range(2):
    index = Index(root)
    done = collect(index, older_than_s=None, keep_bytes=100_000)
    rounds.append([done.removed, done.freed_bytes, done.kept])
    index.close()
left = sorted(path.name for path in root.iterdir() if path.is_dir())
print(json.dumps([said, rounds, left, [row.id for row in Index(root).rows()]]))
"""
)


SUBMIT = (
    FILL
    + """
from samebits.server.jobs import launch
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.requests import InspectRequest
request, told = InspectRequest.model_validate({"experiment": {}}), []
for name in ("before", "after"):
    try:
        launch.prepare(request, Path("jobs", name))
    except UserError as error:
        told.append(str(error))
    fill()
print(json.dumps([told, [path.name for path in Path("jobs").iterdir()]]))
"""
)


@pytest.mark.parametrize("index", ["listed", "unlisted"])
def test_gc_makes_room_on_a_full_disk_and_runs_again(index: str, small_disk: Callable[..., str]) -> None:
    """`unlisted`: there is not even an index, and no room to make one."""
    said, rounds, left, listed = json.loads(small_disk(512, sys.executable, "-c", COLLECT, index))
    assert "full" in said, "the control: the list cannot be written"
    assert rounds[0][0] == ["20260101-000000-measure-a"]
    assert rounds[0][1] > 200_000
    assert rounds[1] == [[], 0, 1]
    assert left == ["20260101-000001-measure-b"]
    assert listed == left


def test_a_request_that_finds_no_room_leaves_no_folder(small_disk: Callable[..., str]) -> None:
    told, left = json.loads(small_disk(512, sys.executable, "-c", SUBMIT))
    assert len(told) == 1, "the control: there was room before"
    assert "No space left on device. Next: check the path and the disk" in told[0]
    assert left == ["before"]
