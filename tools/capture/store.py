"""What a capture holds while it runs: per site the digests (and values) of its rows, pass after pass, under a byte
budget.

The first step of a digest reads the rows at once, where they are, and leaves a few sums per row; the second step folds
the sums of many taps together, since its launches per tap would cost more than a small model. Values are copied to CPU
memory.

Legend: K rows taken at one site in one pass, C columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from samebits.tools.capture.tensors import private
from samebits.tools.diff.digest import digest_whole, fold, lane_sums, raw_bytes
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from samebits.tools.capture.layout import Layout
    from samebits.tools.capture.passes import Chosen
    from samebits.tools.capture.places import Place
    from samebits.tools.schema.sites import Site

WAITING_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}
"""Sums that may wait."""


@dataclass(slots=True)
class Chunk:
    """Rows of one site in one pass."""

    chosen: Chosen
    layout: Layout
    columns: int
    digests: torch.Tensor | None = None
    """int64 [K, 2]; None while waiting."""
    value: torch.Tensor | None = None
    """[K, C] when stored."""


@dataclass(slots=True)
class Entry:
    """One tap."""

    place: Place
    order: int
    producer: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    layout: Layout | None = None
    chunks: list[Chunk] = field(default_factory=list)
    wholes: list[torch.Tensor] = field(default_factory=list)
    """int64 [2] digest of the whole tensor, one per call that had no token rows."""
    whole: torch.Tensor | None = None
    """The tensor of the first such call, when stored."""

    @property
    def site(self) -> Site:
        """Made when it is written: validating one takes longer than digesting a small tensor."""
        return self.place.site


@dataclass(slots=True)
class Store:
    """All taps of a run."""

    keep_values: bool
    budget: int
    expected_rows: int | None = None
    """Token rows that the whole run will compute, when known: then the first pass tells the size of the whole."""
    entries: dict[Place, Entry] = field(default_factory=dict)
    held: int = 0
    """Bytes of all digests and values."""
    _waiting: list[tuple[Chunk, torch.Tensor, int]] = field(default_factory=list)
    """Lane sums that wait to be folded, with the bytes per row."""
    _waiting_bytes: int = 0

    def reserve(self, count: int, place: Place) -> None:
        """Refuse before the memory is taken.

        Raises:
            UserError: the budget would be exceeded.
        """
        if self.held + count > self.budget:
            raise self.refusal(self.held + count, f"already reached at {place.site}")

    def refusal(self, size: int, how: str) -> UserError:
        """The one error of a capture over its budget."""
        return UserError(
            "capture",
            f"needs {size / 2**20:.1f} MiB ({how}), the budget is {self.budget / 2**20:.1f} MiB",
            "raise capture.budget_mib, or capture fewer layers or sequences, or store digests only",
        )

    def add_rows(
        self, entry: Entry, chosen: Chosen, layout: Layout, rows_KC: torch.Tensor, *, keep: bool = True
    ) -> None:
        """Digest rows now, so that what the model writes later does not reach the digest; copy them when stored.

        Args:
            rows_KC: the kept rows; may share memory with the model.
            keep: store their values, where the store keeps any.
        """
        if entry.layout is None or (layout.sure and not entry.layout.sure):
            entry.layout = layout
        chunk = Chunk(chosen, layout, rows_KC.shape[1])
        entry.chunks.append(chunk)
        bytes_KB = raw_bytes(rows_KC)
        self.held += 16 * chosen.count
        if keep and self.keep_values:
            self.held += rows_KC.nbytes
            chunk.value = private(rows_KC)
        sums = lane_sums(bytes_KB)
        self._waiting.append((chunk, sums, bytes_KB.shape[1]))
        self._waiting_bytes += sums.nbytes
        if self._waiting_bytes > WAITING_BYTES.get(rows_KC.device.type, 8 << 20):
            self.flush()

    def add_whole(
        self, entry: Entry, tensor: torch.Tensor, digest: torch.Tensor | None = None, *, keep: bool = True
    ) -> torch.Tensor:
        """Digest a tensor without token rows (or take over its known digest); returns the digest."""
        known = digest_whole(tensor).cpu() if digest is None else digest
        entry.wholes.append(known)
        self.held += 16
        if keep and self.keep_values and entry.whole is None:  # weights are never kept: the model folder has them
            self.held += tensor.nbytes
            entry.whole = tensor.detach().to("cpu", copy=True).contiguous()
        return known

    def flush(self) -> None:
        """Fold the sums that wait, those of rows of equal length together."""
        groups: dict[tuple[torch.device, int], list[tuple[Chunk, torch.Tensor]]] = {}
        for chunk, sums, length in self._waiting:
            groups.setdefault((sums.device, length), []).append((chunk, sums))
        for (_, length), group in groups.items():
            parts = [sums for _, sums in group]
            digests = fold(parts[0] if len(parts) == 1 else torch.cat(parts), length)
            for (chunk, _), part in zip(group, torch.split(digests, [len(sums) for sums in parts]), strict=True):
                chunk.digests = part
        self._waiting.clear()
        self._waiting_bytes = 0

    def after_first_pass(self, rows: int) -> None:
        """Refuse a run whose size, seen from its first pass, is beyond the budget.

        Raises:
            UserError: naming the estimate and the budget.
        """
        if self.expected_rows is None or rows == 0:
            return
        estimate = self.held * max(1.0, self.expected_rows / rows)
        if estimate > self.budget:
            raise self.refusal(
                int(estimate),
                f"{self.held / 2**20:.1f} MiB for the {rows} token rows of the first pass, {self.expected_rows} in all",
            )

    def drop(self) -> None:
        """Free everything."""
        self.entries.clear()
        self._waiting.clear()
        self.held = self._waiting_bytes = 0
