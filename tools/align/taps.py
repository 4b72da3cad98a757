"""The taps of one stored capture, by site.

Legend: R token rows, C elements per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open

from samebits.tools.schema.artifacts.capture import CaptureManifest, Tap
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from pathlib import Path

    from samebits.tools.schema.sites import Site

TENSORS = "taps.safetensors"


@dataclass
class Taps:
    """One capture, opened lazily: tensors are read when asked for."""

    folder: Path
    manifest: CaptureManifest
    numbers: dict[str, int]
    """Tap number by site string."""
    file: Any
    _keys: dict[int, torch.Tensor]

    @classmethod
    def open(cls, folder: Path) -> Taps:
        """Open a Capture artifact (its digests are checked)."""
        manifest = artifact.read(folder, CaptureManifest)
        numbers = {str(tap.site): number for number, tap in enumerate(manifest.taps)}
        return cls(folder, manifest, numbers, safe_open(folder / TENSORS, "pt"), {})

    def tap(self, site: str) -> Tap:
        """The tap of a site."""
        return self.manifest.taps[self.numbers[site]]

    @cached_property
    def rowed(self) -> list[Tap]:
        """Taps that have token rows, in execution order."""
        return sorted((tap for tap in self.manifest.taps if tap.rowset is not None), key=lambda tap: tap.order)

    @cached_property
    def calls(self) -> dict[str, int]:
        """Number of calls of each module that has taps of its own ports."""
        found: dict[str, int] = {}
        for tap in self.manifest.taps:
            if not tap.site.op:
                found[tap.site.module] = max(found.get(tap.site.module, 0), tap.site.call + 1)
        return found

    @cached_property
    def last(self) -> int:
        """The latest place in time."""
        return max((tap.order for tap in self.manifest.taps), default=0)

    def keys(self, site: str) -> torch.Tensor:
        """int64 [R] keys (sequence << 32 | position) of a tap's rows, ascending."""
        rowset = self.tap(site).rowset
        assert rowset is not None
        if rowset not in self._keys:
            rows_R2 = self.file.get_tensor(f"rows.{rowset}").to(torch.int64)
            self._keys[rowset] = (rows_R2[:, 0] << 32) | rows_R2[:, 1]
        return self._keys[rowset]

    def passes(self, site: str) -> torch.Tensor | None:
        """int32 [R], the forward pass each row of a tap was computed in; None: a capture that does not say."""
        name = f"passes.{self.tap(site).rowset}"
        value: torch.Tensor | None = self.file.get_tensor(name) if name in self.file.keys() else None  # noqa: SIM118
        return value

    def digests(self, site: str) -> torch.Tensor:
        """int64 [R, 2]."""
        value: torch.Tensor = self.file.get_tensor(f"digest.{self.numbers[site]}")
        return value

    def value(self, site: str) -> torch.Tensor:
        """[R, C] in the tap's dtype; the tap must be stored."""
        value: torch.Tensor = self.file.get_tensor(f"value.{self.numbers[site]}")
        return value

    def names(self, site: str) -> tuple[str, str, str]:
        """File, value name and rows name of a stored tap, as a Replace edit wants them."""
        return str(self.folder / TENSORS), f"value.{self.numbers[site]}", f"rows.{self.tap(site).rowset}"


def common_rows(keys_a: torch.Tensor, keys_b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices into two ascending key lists of the rows both have."""
    if keys_a is keys_b or torch.equal(keys_a, keys_b):  # as a rule, and searching takes much longer
        every = torch.arange(len(keys_a))
        return every, every
    index_a = torch.searchsorted(keys_a, keys_b).clamp(max=max(len(keys_a) - 1, 0))
    if len(keys_a) == 0:
        return index_a[:0], index_a[:0]
    hit = keys_a[index_a] == keys_b
    return index_a[hit], torch.arange(len(keys_b))[hit]


def producer(taps: Taps, site: Site) -> Site:
    """The earliest module output with exactly this site's bits: what computed the value that arrives at an input.

    Returns the site itself when it is an output, or when no output has its bits.
    """
    own = taps.tap(str(site))
    if site.port.startswith("out"):
        return site
    same = [
        tap
        for tap in taps.rowed
        if tap.digest == own.digest
        and tap.rowset == own.rowset
        and tap.site.port.startswith("out")
        and tap.order < own.order
    ]
    return min(same, key=lambda tap: tap.order).site if same else site
