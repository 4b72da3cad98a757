"""What the engine's side refuses before an engine is asked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Rollout
from samebits.tools.sides.vllm.side import VllmSide


def test_a_sequence_beyond_the_engines_length_names_a_step_that_also_rows_of_a_file_can_take() -> None:
    side = SimpleNamespace(config=Rollout(max_model_len=8))
    VllmSide._check_lengths(side, [3, 8])  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"a sequence of 9 tokens.*drop the sequence or raise rollout\.max_model_len"):
        VllmSide._check_lengths(side, [3, 9])  # type: ignore[arg-type]
