"""TensorBoard is optional: without it one clear error, with it one value per figure and step."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from samebits.tools.rl.board import writer_for
from samebits.tools.schema.artifacts.gap import GapStats
from samebits.tools.schema.artifacts.rl import StepLine
from samebits.tools.schema.errors import UserError

GAP = GapStats(tokens=4, nonzero=3, nonfinite=0, max=0.5, mean=0.0, std=0.1, k3=2e-5)
LINE = StepLine(
    step=7,
    reward=0.5,
    solved=0.25,
    gap=GAP,
    gradient_norm=0.75,
    loss=0.1,
    entropy=1.5,
    tokens=4,
    version=7,
    staleness=GAP,
    mean_weight=1.0,
    effective=1.0,
    kept=1.0,
    seconds={},
    digest="",
)


def test_without_the_package_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"samebits\[tensorboard\]"):
        writer_for(tmp_path)


def test_every_figure_of_a_step_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package itself is not among the test's requirements: its writer is stood in for."""
    written: dict[str, Any] = {}

    class Writer:
        def __init__(self, folder: str) -> None:
            written["folder"] = folder

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written[name] = (value, step)

        def flush(self) -> None:
            written["flushed"] = True

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    writer_for(tmp_path)(LINE)
    assert written.pop("folder") == str(tmp_path / "tensorboard")
    assert written.pop("flushed")
    assert written["k3"] == (2e-5, 7)
    assert written["gradient_norm"] == (0.75, 7)
    assert {"reward", "max_diff", "nonzero", "staleness_k3"} < set(written)
