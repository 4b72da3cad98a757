"""Every row operator's Triton kernels under the interpreter, in a process of their own: the mode is fixed when Triton
is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROW_OPERATORS = ("rms_norm", "silu_mul", "rotary", "embedding", "logprob", "normed_rotary")


def interpret(script: str, *names: str) -> list[Any]:
    """The JSON lines of a script beside this file."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / script), *names],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_interpreted_kernels_have_the_bits_of_their_contracts_and_the_gradients_of_the_plain_backward() -> None:
    found = interpret("interpreted.py", *ROW_OPERATORS)
    assert [entry["operator"] for entry in found] == list(ROW_OPERATORS)
    for entry in found:
        assert entry["compared"] > 80
        assert entry["wrong"] == []
        assert entry["backward"] is None or 0 <= entry["backward"] < 1e-5
    assert [entry["operator"] for entry in found if entry["backward"] is None] == ["normed_rotary"]


def test_no_bit_of_normed_rotary_depends_on_heads_per_block_or_warps_and_a_lane_sum_of_other_units_is_seen() -> None:
    (found,) = interpret("interpreted_blocking.py")
    assert found["compared"] > 30_000
    assert found["wrong"] == []
    assert found["planted"]


def test_normed_rotary_writes_keys_and_values_into_their_slots_and_no_other_byte_and_a_moved_slot_is_seen() -> None:
    (found,) = interpret("interpreted_pages.py")
    assert found["compared"] > 200_000
    assert found["wrong"] == []
    assert found["planted"] == 6
