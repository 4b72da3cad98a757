"""Capture: taps of one side over the tokens of a rollout."""

from __future__ import annotations

from typing import Literal

from samebits.tools.schema.artifacts.base import Manifest
from samebits.tools.schema.base import Model
from samebits.tools.schema.sites import CapturePlan, Site


class Tap(Model):
    """One tensor taken at a site, cut into token rows.

    taps.safetensors holds, for tap number k: `digest.k` int64 [rows, 2] (128 bits per token row, see
    tools/diff/digest.py) and, when stored, `value.k` [rows, columns] in the tap's dtype. Rows are those of its row set
    `rows.SET` int32 [rows, 2] (sequence, position), sorted; `passes.SET` int32 [rows] is the forward pass each row was
    computed in (the rows that went through an operator together). What has no token rows (weights, scalars, masks) has
    `digest.k` int64 [calls, 2] (one row when all calls were equal) and, when stored, `whole.k`, the tensor of its first
    call.
    """

    site: Site
    order: int
    """Time within the first pass that had it: inputs are taken when a call begins, outputs when it ends."""
    dtype: str
    shape: tuple[int, ...]
    """Shape of the tensor in its first call."""
    strides: tuple[int, ...]
    columns: int
    """Elements per token row; 0: no token rows, or their width differs from pass to pass."""
    rowset: int | None
    """Number of its row set; None: no token rows."""
    rows: int
    stored: bool
    digest: str
    """Hex: the digest of the row digests in (sequence, position) order, or of the whole tensor's bytes."""
    producer: str = ""
    """Class name of the module, or the operator."""


class Replay(Model):
    """Proof (a): the operator run again on its recorded inputs."""

    site: Site
    equal: bool
    calls: int
    reason: str = ""
    shows: Literal["", "race", "state", "order_batch"] = ""
    """What a module proved when it was run alone (tools/capture/alone.py), and"""
    why: str = ""
    """the proof."""


class CaptureManifest(Manifest):
    schema_version: int = 2
    """The version of the digest (tools/diff/digest.py): digests of two versions are never compared."""
    kind: Literal["capture"] = "capture"
    role: Literal["rollout", "trainer"]
    plan: CapturePlan
    taps: tuple[Tap, ...]
    tokens: int
    passes: int
    """Forward passes seen."""
    recomputed: int
    """Token rows computed more than once (preemption); each kept only if its bits were equal."""
    recomputed_differing: tuple[str, ...]
    """Sites at which a recomputed row had other bits."""
    missing: int
    """Token rows the side never computed in this run (prefix cache hits)."""
    same_logprobs: bool | None
    """Whether the captured run gave the bits of the run without capture; None: not compared."""
    replays: tuple[Replay, ...] = ()
    untapped: tuple[str, ...] = ()
    """Modules or operators that ran and were not tapped, with the reason."""
