"""Every row operator's Triton kernels under the interpreter, in a process of their own: the mode is fixed when Triton
is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROW_OPERATORS = ("rms_norm", "silu_mul", "rotary", "embedding", "logprob", "normed_rotary")


def test_the_interpreted_kernels_have_the_bits_of_their_contracts_and_the_gradients_of_the_plain_backward() -> None:
    script = Path(__file__).parent / "interpreted.py"
    done = subprocess.run(
        [sys.executable, str(script), *ROW_OPERATORS],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [entry["operator"] for entry in found] == list(ROW_OPERATORS)
    for entry in found:
        assert entry["compared"] > 80
        assert entry["wrong"] == []
        assert entry["backward"] is None or 0 <= entry["backward"] < 1e-5
    assert [entry["operator"] for entry in found if entry["backward"] is None] == ["normed_rotary"]
