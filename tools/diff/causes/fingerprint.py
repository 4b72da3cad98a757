"""Where two outputs differ and by how much, in one sentence. It suggests; it never names a cause."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from samebits.tools.diff.bits import ordered

if TYPE_CHECKING:
    from samebits.tools.diff.causes.observation import Observation

DENSE = 0.1
"""Share of differing elements from which a difference is called dense: rounding points lie at 20 to 33% of bfloat16
outputs, changes of order far below 1%."""


@dataclass(slots=True, frozen=True)
class Marks:
    """Counts behind the sentence."""

    elements: int
    differing: int
    rows: int
    rows_differing: int
    max_ulps: int
    max_abs: float
    signs_only: int
    """Differing elements whose values are equal (zeros of unequal sign) or both NaN."""
    nonfinite: int
    bits_of_evidence: float
    """How many bits an accidental fit of all elements would have to guess: see `evidence`."""


def evidence(difference: torch.Tensor) -> float:
    """Bits of information in the pattern of differences (int64 ulps, any shape).

    The entropy of the histogram of signed distances times the number of elements, at least one bit per differing
    element: an arithmetic that is not the cause would have to hit all of that by chance.
    """
    values, counts = torch.unique(difference.reshape(-1).clamp(-64, 64), return_counts=True)
    total = int(counts.sum())
    share = counts.double() / total
    return max(float(-(share * share.log2()).sum()) * total, float(counts[values != 0].sum()))


def marks(a: torch.Tensor, b: torch.Tensor) -> Marks:
    """Compare two outputs [T, ...] of one dtype bit for bit."""
    difference = ordered(a) - ordered(b)
    hit = difference != 0
    rows = hit.reshape(hit.shape[0], -1).any(-1) if hit.dim() else hit[None]
    values = (a.double() - b.double()).abs()[hit]
    finite = values[values.isfinite()]
    same = (a == b) | (a.isnan() & b.isnan()) if a.is_floating_point() else a == b
    return Marks(
        elements=hit.numel(),
        differing=int(hit.sum()),
        rows=rows.numel(),
        rows_differing=int(rows.sum()),
        max_ulps=int(difference.abs().max()) if hit.numel() else 0,
        max_abs=float(finite.max()) if finite.numel() else 0.0,
        signs_only=int((hit & same).sum()),
        nonfinite=int((~(a.isfinite() & b.isfinite())).sum()) if a.is_floating_point() else 0,
        bits_of_evidence=evidence(difference) if hit.numel() else 0.0,
    )


def density(found: Marks) -> str:
    """every element, dense, or sparse."""
    share = found.differing / max(1, found.elements)
    if found.differing == found.elements:
        return "every element"
    return f"{share:.1%}, dense" if share >= DENSE else f"{share:.2g} of all, sparse"


def place(seen: Observation, hit: torch.Tensor) -> str:
    """Which rows and columns: the first ones, and a block when there is one."""
    flat = hit.reshape(hit.shape[0], -1)
    rows = flat.any(-1).nonzero()[:, 0]
    columns = flat.any(0).nonzero()[:, 0]
    first = int(rows[0])
    words = [f"first at row {first}, column {int(flat[first].nonzero()[0, 0])}"]
    if seen.position is not None:
        touched = seen.position.reshape(-1)[rows]
        words.append(f"positions {int(touched.min())} to {int(touched.max())}")
    if first and len(rows) == hit.shape[0] - first:
        words.append(f"all rows from {first} on and none before")
    if flat.shape[1] > 1 and len(columns) == int(columns[-1] - columns[0]) + 1 < flat.shape[1]:
        words.append(f"only columns {int(columns[0])} to {int(columns[-1])}")
    return ", ".join(words)


def fingerprint(seen: Observation) -> str:
    """One sentence."""
    a, b = seen.rollout, seen.trainer
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"the outputs are {tuple(a.shape)} {a.dtype} and {tuple(b.shape)} {b.dtype}".replace("torch.", "")
    found = marks(a, b)
    if not found.differing:
        return f"no element of {found.elements:,} differs"
    words = [
        f"{found.differing:,} of {found.elements:,} elements differ ({density(found)})",
        f"in {found.rows_differing:,} of {found.rows:,} rows",
        f"by at most {ulps(found.max_ulps)} and {found.max_abs:.3g}",
        place(seen, ordered(a) != ordered(b)),
    ]
    if found.signs_only:
        words.append(f"{found.signs_only:,} of them equal as values (sign of zero or NaN payload)")
    if found.nonfinite:
        words.append(f"{found.nonfinite:,} elements are not finite")
    return ", ".join(words)


def ulps(count: int) -> str:
    """A distance in words."""
    if count == 1:
        return "1 ulp"
    return f"{count:,} ulps" if count < 1 << 20 else f"2^{math.log2(count):.0f} ulps"
