"""When a loop stops, and what it leaves on the disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from samebits.tools.rl import checkpoint, loop
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Rl


class Steps:
    """A loop whose steps take ten seconds of a clock of its own."""

    def __init__(self, **settings: Any) -> None:
        self.step, self.now = 0, 0.0
        self.settings = Rl.model_validate(settings)

    def one_step(self) -> Any:
        self.step += 1
        self.now += 10.0
        return SimpleNamespace(step=self.step - 1, seconds={"rollout": 4.0, "update": 6.0})


class Store:
    """What a store was asked."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def append(self, line: Any) -> None:
        self.done.append(f"line {line.step}")

    def save(self, _loop: Any) -> None:
        self.done.append("save")

    def drop(self) -> None:
        self.done.append("drop")


def ran(steps: int, ends: float, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[str]:
    own, store = Steps(**settings), Store()
    monkeypatch.setattr(loop, "time", SimpleNamespace(time=lambda: own.now))
    tell: Any = lambda _line: None  # noqa: E731
    assert loop.run(own, store, steps, tell, ends) == ""  # type: ignore[arg-type]
    return store.done


def test_a_whole_loop_leaves_no_checkpoint_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ["line 0", "line 1", "save", "line 2", "line 3"]
    assert ran(4, 1e9, monkeypatch, checkpoint_every=2) == [*whole, "drop"]
    assert ran(4, 1e9, monkeypatch, checkpoint_every=2, keep_checkpoint=True) == [*whole, "save"]


def test_a_loop_stops_with_a_checkpoint_before_a_step_that_no_longer_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran(4, 30.0, monkeypatch, checkpoint_every=9) == ["line 0", "line 1", "line 2", "save"]
    assert ran(4, 29.0, monkeypatch, checkpoint_every=9) == ["line 0", "line 1", "save"]
    assert ran(4, -1.0, monkeypatch, checkpoint_every=9) == ["line 0", "save"], "one step at least: it always gets on"


def test_a_disk_that_checkpoints_do_not_fit_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 30 << 30
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=free))
    many, none = Rl(steps=100, checkpoint_every=50), Rl(steps=100, checkpoint_every=100)
    billions = 1_720_000_000
    with pytest.raises(UserError, match=r"30\.0 GiB free; checkpoints of 1\.72e9 parameters need 38\.4 GiB") as refused:
        checkpoint.check_disk(tmp_path, billions, Rl(steps=100, checkpoint_every=10), limited=False)
    assert "checkpoint_every" in refused.value.next_step
    checkpoint.check_disk(tmp_path, billions, many, limited=False)
    with pytest.raises(UserError, match=r"38\.4 GiB"):
        checkpoint.check_disk(tmp_path, billions, many, limited=True)
    checkpoint.check_disk(tmp_path, billions, none, limited=True)
    free = 1
    checkpoint.check_disk(tmp_path, billions, none, limited=False)
    with pytest.raises(UserError, match=r"3\.2 GiB"):
        checkpoint.check_disk(tmp_path, billions, none, limited=False, models=1)
