"""Which kernels really ran in this process: counted where they are launched, so also while a CUDA graph is captured.

A replay of a graph runs what its capture launched and counts nothing.
"""

from __future__ import annotations

from collections import Counter

COUNTS: Counter[str] = Counter()


def ran(kernel: str) -> None:
    """Count one launch."""
    COUNTS[kernel] += 1


def counts() -> dict[str, int]:
    """Kernel -> launches so far."""
    return dict(sorted(COUNTS.items()))
