"""A request to end that Python swallowed is noticed at the next event."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from samebits.tools.job import stopping
from samebits.tools.job.job import Job


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    asked: list[int] = []
    monkeypatch.setattr(stopping, "ASKED", asked)
    return asked


def lost() -> None:
    """The handler's exception where only a message of it would be left."""
    with pytest.raises(stopping.Stopped):
        stopping.stop(signal.SIGTERM, None)


def test_a_lost_request_is_raised_again_at_the_next_event(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.emit("open", "nobody asked")
    lost()
    with pytest.raises(stopping.Stopped):
        job.emit("open", "it was asked")
    assert "it was asked" not in (tmp_path / "events.jsonl").read_text()


def test_not_while_the_job_is_ending_already(tmp_path: Path) -> None:
    lost()
    try:
        raise stopping.Stopped
    except stopping.Stopped:
        Job(tmp_path).emit("close", "on the way out")
    assert "on the way out" in (tmp_path / "events.jsonl").read_text()
