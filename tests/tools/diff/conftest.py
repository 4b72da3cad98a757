"""A rollout side with planted operators."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from samebits.tools.schema.passes import How
from samebits.tools.sides.python.side import PythonSide
from samebits.tools.sides.scoring.torch_side import TorchSide

if TYPE_CHECKING:
    from samebits.tools.schema.experiment import Workload
    from samebits.tools.sides.protocol import RolloutData


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted side can be imported, and scores whole sequences as the trainer does: only what is planted differs.
    (Token by token, prefixes of other lengths are other matrix shapes, with bits of their own.)
    """
    decoded = PythonSide.generate

    def whole(self: PythonSide, workload: Workload) -> RolloutData:
        data = decoded(self, workload)
        data.logprob_N = TorchSide.score(self, data, How(), None, (), Path()).logprob_N
        return data

    monkeypatch.setattr(PythonSide, "generate", whole)
    monkeypatch.setattr(PythonSide, "score", TorchSide.score)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.delitem(sys.modules, "planted_sides", raising=False)
