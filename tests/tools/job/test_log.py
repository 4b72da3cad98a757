"""However much a process prints, its first and its last words stay, and the disk does not fill."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from samebits.tools.job import log as logs
from samebits.tools.job.log import Log
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Experiment
from samebits.tools.sides.session import Session

LIMIT = 1 << 20
FLOOD = """import os
os.write(1, b"the first line\\n")
for _ in range(20):
    os.write(1, b"x" * ((1 << 20) - 1) + b"\\n")
os.write(2, b"the last line\\n")
"""


def sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


@pytest.mark.parametrize("keep_head", [True, False])
def test_of_a_flood_the_end_stays_and_the_head_where_it_is_kept(tmp_path: Path, keep_head: bool) -> None:
    log = Log(tmp_path / "side.log", LIMIT, keep_head=keep_head)
    process = subprocess.Popen([sys.executable, "-c", FLOOD], stdout=log.write_end, stderr=log.write_end)
    log.follow()
    assert process.wait() == 0
    log.close()
    assert log.last_line() == "the last line"
    found = sizes(tmp_path)
    assert found.keys() == {"side.log", "side.1.log"} | ({"side.head.log"} if keep_head else set())
    assert max(found.values()) <= LIMIT + (1 << 16)
    if keep_head:
        assert (tmp_path / "side.head.log").read_text().startswith("the first line\n")


def test_what_is_little_is_one_file_to_which_a_second_writer_is_added(tmp_path: Path) -> None:
    for word in ("one", "two"):
        log = Log(tmp_path / "side.log", LIMIT, keep_head=True)
        os.write(log.write_end, f"{word}\n".encode())
        log.close()
    assert sizes(tmp_path) == {"side.log": 8}
    assert (tmp_path / "side.log").read_text() == "one\ntwo\n"


def test_a_side_that_floods_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The side's own interpreter prints before anything else of it runs; then it refuses, as the model is not there."""
    monkeypatch.setattr(logs.Log.__init__, "__defaults__", (LIMIT,))
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "sitecustomize.py").write_text(FLOOD)
    experiment = Experiment.model_validate({"rollout": {"side": "transformers", "model": str(tmp_path / "absent")}})
    with pytest.raises(UserError, match="no such folder"):
        Session.start("rollout", experiment, "cpu", tmp_path, env={"PYTHONPATH": str(tmp_path / "first")})
    found = sizes(tmp_path / "sides")
    assert "rollout.head.log" in found
    assert sum(found.values()) <= 3 * LIMIT + (1 << 20)
    assert (tmp_path / "sides" / "rollout.head.log").read_text().startswith("the first line\n")
