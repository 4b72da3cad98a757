"""Differences that are no arithmetic: another dtype, moved rows, another scale. Each is exact or not claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from samebits.tools.diff.causes.fingerprint import fingerprint, marks
from samebits.tools.diff.causes.observation import same_bits
from samebits.tools.schema.artifacts.divergence import Cause

if TYPE_CHECKING:
    from samebits.tools.diff.causes.observation import Observation

RATIO_SPREAD = 4e-7
"""Largest relative spread of a constant ratio in float32: two roundings of each side."""


def structural(seen: Observation) -> Cause | None:
    """The first structural cause that holds for every element, or None."""
    if seen.rollout.shape != seen.trainer.shape:
        why = "the outputs have different shapes; no element was compared"
        return Cause(name="unknown", why=why, fingerprint=fingerprint(seen))
    if seen.rollout.dtype != seen.trainer.dtype:
        return output_dtype(seen)
    if not marks(seen.rollout, seen.trainer).differing:
        return Cause(
            name="vacuous", why="the outputs are equal: there is nothing to explain", fingerprint=fingerprint(seen)
        )
    for test in (moved_rows, swapped_columns, constant_ratio):
        why = test(seen)
        if why:
            return Cause(name="formula" if test is constant_ratio else "data", why=why, fingerprint=fingerprint(seen))
    return None


def output_dtype(seen: Observation) -> Cause:
    """Outputs of unequal dtype: a cast when rounding the wider one gives the narrower one to the bit."""
    a, b = seen.rollout, seen.trainer
    wide, narrow = (a, b) if a.element_size() > b.element_size() else (b, a)
    side = "rollout" if narrow is a else "trainer"
    if wide.element_size() > narrow.element_size() and same_bits(wide.to(narrow.dtype), narrow):
        why = f"the {side}'s output is the other side's rounded to {narrow.dtype}, to the bit".replace("torch.", "")
        return Cause(name="cast", why=why, fingerprint=fingerprint(seen))
    why = f"the output dtypes differ ({a.dtype}, {b.dtype}) and rounding does not explain the values".replace(
        "torch.", ""
    )
    return Cause(name="unknown", why=why, fingerprint=fingerprint(seen))


def keys(x: torch.Tensor) -> list[bytes]:
    """Each row's bytes."""
    flat = x.cpu().contiguous().reshape(-1).view(torch.uint8).view(x.shape[0], -1)
    return [row.numpy().tobytes() for row in flat]


def moved_rows(seen: Observation) -> str:
    """The same rows in another order (a shift, a permutation)."""
    ours, theirs = keys(seen.rollout), keys(seen.trainer)
    count = len(ours)
    if count < 3 or len(set(ours)) < count:
        return ""
    for lag in (1, -1):
        pairs = [(i, i + lag) for i in range(count) if 0 <= i + lag < count]
        if all(ours[i] == theirs[j] for i, j in pairs):
            return (
                f"row i of the rollout is row i{lag:+d} of the trainer for all {len(pairs)} rows that have one: shifted"
            )
    if sorted(ours) == sorted(theirs):
        return f"the {count} rows are the same ones in another order: the layout of the rows differs"
    return ""


def swapped_columns(seen: Observation) -> str:
    """The same columns in another order (merged weights in another order, heads permuted)."""
    if seen.rollout.dim() < 2:
        return ""
    a = seen.rollout.reshape(seen.rollout.shape[0], -1).t()
    b = seen.trainer.reshape(seen.trainer.shape[0], -1).t()
    ours, theirs = keys(a), keys(b)
    if len(a) >= 3 and a.shape[1] >= 3 and len(set(ours)) == len(ours) and sorted(ours) == sorted(theirs):
        return f"the {len(ours)} columns are the same ones in another order: the layout of the columns differs"
    return ""


def constant_ratio(seen: Observation) -> str:
    """Every element of a float32 output off by one factor."""
    a, b = seen.rollout, seen.trainer
    if a.dtype != torch.float32 or a.numel() < 32 or not bool((b != 0).all()):
        return ""
    ratio = a.double() / b.double()
    spread = float((ratio.max() - ratio.min()) / ratio.mean().abs())
    middle = float(ratio.mean())
    if spread <= RATIO_SPREAD and abs(middle - 1) > 1e-4:
        return f"every element is the trainer's times {middle:.7g} (spread {spread:.1e}): a constant scale"
    return ""
