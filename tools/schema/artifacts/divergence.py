"""Alignment and Divergence: which sites are the same place, and which operators differ by themselves."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from samebits.tools.schema.artifacts.base import Manifest
from samebits.tools.schema.artifacts.gap import GapStats
from samebits.tools.schema.base import Model
from samebits.tools.schema.sites import Site


class Pair(Model):
    """Two taps that hold the same quantity."""

    rollout: Site
    trainer: Site
    columns: tuple[int, int] | None
    """Columns of the wider side's row that the other covers; None: all."""
    wider: Literal["rollout", "trainer", "neither"]
    by: Literal["weights", "place", "input", "value"]
    """By the weights used, by place between paired neighbours, as the input of a paired site, or by place and value."""


class AlignmentManifest(Manifest):
    kind: Literal["alignment"] = "alignment"
    pairs: tuple[Pair, ...]
    unpaired_rollout: tuple[str, ...]
    unpaired_trainer: tuple[str, ...]


class Bits(Model):
    """Two sets of rows compared bit for bit."""

    rows: int
    rows_differing: int
    elements: int
    elements_differing: int
    max_ulps: int
    max_abs: float
    value_equal_only: int
    """Elements equal as values and not as bits (zeros of unequal sign, NaN payloads)."""


class Proof(Model):
    """Step 5 of docs/how-a-difference-is-found.md, of one operator."""

    rollout_replay: bool | None
    """(a) The rollout side's operator, run alone on the recorded inputs, gives the recorded output; None: not
    replayed."""
    trainer_replay: bool | None
    equal_until: str
    """(b) With the rollout's output put in: the next site that differs, or "the logprobs are equal"."""
    returns: bool
    """(b) With its own output back, the difference is back at this very site."""
    notes: tuple[str, ...] = ()


class Cause(Model):
    """Step 6 of docs/how-a-difference-is-found.md."""

    name: Literal[
        "order_batch",
        "order_static",
        "cast",
        "precision",
        "formula",
        "path",
        "race",
        "state",
        "data",
        "capture",
        "vacuous",
        "unknown",
    ]
    why: str
    """The plain PyTorch arithmetic that gives the other side's bits, or the trigger that was switched."""
    switch: dict[str, str] = {}
    """Environment of the side with which the difference is gone, when a trigger was switched."""
    fingerprint: str = ""
    """Density and size of the differing elements, in words."""


class WorkItem(Model):
    """One operator that differs by itself: its inputs are bit-equal, its output is not."""

    index: int
    kind: str
    """norm, rotary, attention, linear, activation, router, experts, embedding, logprob, or "region"."""
    rollout: tuple[Site, ...]
    trainer: tuple[Site, ...]
    between: str
    """"A" or "between A and B" when the two sides fuse differently."""
    inputs: tuple[Pair, ...]
    bits: Bits
    proof: Proof
    cause: Cause
    effect: GapStats
    """Logprob difference when this operator alone is the trainer's own and all others on the list are put right."""
    same_as: int | None = None
    """Index of the first item with the same kind in another layer."""
    rollout_capture: str = ""
    trainer_capture: str = ""
    """Folders (relative to the divergence's run) with the stored tensors."""


class Identical(Model):
    status: Literal["identical"] = "identical"
    compared: int


class Diverged(Model):
    status: Literal["diverged"] = "diverged"
    first: WorkItem


class Incomparable(Model):
    status: Literal["incomparable"] = "incomparable"
    reason: str


class DivergenceManifest(Manifest):
    kind: Literal["divergence"] = "divergence"
    outcome: Annotated[Identical | Diverged | Incomparable, Field(discriminator="status")]
    work: tuple[WorkItem, ...]
    """In execution order."""
    gap: GapStats
    """With no operator put right."""
    unexplained: GapStats
    """With every operator of the list put right; exact when the list explains all."""
    compared: int
    """Pairs of taps compared; of a side against itself: logprobs compared."""
    not_compared: tuple[str, ...]
    """Sites with no partner, or not tapped, with the reason."""
    passes: dict[str, int]
    """Passes run per side."""
    before: tuple[str, ...] = ()
    """Steps 1 and 2 of docs/how-a-difference-is-found.md: what was found before operators were compared, in the
    order in which it was asked."""
    layers: tuple[tuple[str, int, int], ...] = ()
    """Pass 1: (paired module, rows compared, rows differing), in execution order."""
