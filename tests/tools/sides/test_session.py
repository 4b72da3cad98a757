"""A side that refuses to start, seen from the worker through the real process border."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Experiment
from samebits.tools.sides.session import Session

if TYPE_CHECKING:
    from pathlib import Path


def test_a_refusal_to_start_names_the_log_of_the_side(tmp_path: Path) -> None:
    experiment = Experiment.model_validate({"rollout": {"side": "transformers", "model": str(tmp_path / "absent")}})
    log = tmp_path / "sides" / "rollout.log"
    with pytest.raises(UserError, match="no such folder") as caught:
        Session.start("rollout", experiment, "cpu", tmp_path)
    assert caught.value.next_step.endswith(f"; log: {log}")
    assert log.is_file()
