"""Shared by test_linear.py and test_attention.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from samebits.kernels.ops.rows import RowGroup


def interpreted(name: str) -> dict[str, Any]:
    """One check of interpreted_heavy.py, in a process of its own: Triton fixes the mode when it is imported."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "interpreted_heavy.py"), name],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def raw(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


def unequal_rows(groups: Iterator[RowGroup], op: Any) -> tuple[int, int]:
    """(rows compared, rows with other bits than in the first call that holds them)."""
    compared = wrong = 0
    for group in groups:
        known: dict[int, torch.Tensor] = {}
        for call in group.calls:
            out = op(**call.args)
            for i, place in enumerate(call.rows):
                if place is None:
                    continue
                row = raw(out[place])
                if i in known:
                    compared += 1
                    wrong += not torch.equal(row, known[i])
                else:
                    known[i] = row
    return compared, wrong
