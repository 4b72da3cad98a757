"""Turns what a recorder holds into a Capture artifact: rows merged over passes, sorted, duplicates compared.

Legend: K rows of one site over all passes, U of them unique.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from samebits.tools.capture.passes import rows_of
from samebits.tools.diff.digest import digest_tap, digest_taps, to_hex
from samebits.tools.schema.artifacts.base import Environment
from samebits.tools.schema.artifacts.capture import CaptureManifest, Tap
from samebits.tools.store import artifact

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from samebits.tools.capture.recorder import Recorder
    from samebits.tools.capture.store import Chunk, Entry

TENSORS = "taps.safetensors"


@dataclass(slots=True)
class RowSet:
    """Rows that taps with the same passes share."""

    number: int
    keys_U: torch.Tensor
    pick_U: torch.Tensor
    """Index into the K rows in order of the passes: the first time each key was computed."""
    again: torch.Tensor
    """Indices of later computations of a key, and"""
    first: torch.Tensor
    """of the first one."""


@dataclass(slots=True)
class RowSets:
    """All row sets of a capture, without repetition."""

    by_passes: dict[tuple[str, ...], RowSet] = field(default_factory=dict)
    numbers: dict[bytes, int] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def of(self, chunks: list[Chunk]) -> RowSet:
        """The row set of these chunks."""
        name = tuple(chunk.chosen.name for chunk in chunks)
        if name not in self.by_passes:
            chosen = [chunk.chosen for chunk in chunks]
            pass_K = torch.cat([torch.full((one.count,), one.number, dtype=torch.int32) for one in chosen])
            self.by_passes[name] = self._make(torch.cat([one.kept_keys for one in chosen]), pass_K)
        return self.by_passes[name]

    def _make(self, keys_K: torch.Tensor, pass_K: torch.Tensor) -> RowSet:
        order_K = torch.argsort(keys_K, stable=True)
        sorted_K = keys_K[order_K]
        new = torch.ones(len(sorted_K), dtype=torch.bool)
        new[1:] = sorted_K[1:] != sorted_K[:-1]
        keys_U, pick_U = sorted_K[new], order_K[new]
        group_K = new.cumsum(0) - 1
        again, first = order_K[~new], pick_U[group_K[~new]]
        content = keys_U.numpy().tobytes()
        number = self.numbers.setdefault(content, len(self.numbers))
        self.tensors.setdefault(f"rows.{number}", rows_of(keys_U))
        self.tensors.setdefault(f"passes.{number}", pass_K[pick_U])
        return RowSet(number, keys_U, pick_U, again, first)


@dataclass(slots=True)
class Merged:
    """Taps and tensors of the artifact."""

    sets: RowSets = field(default_factory=RowSets)
    taps: list[Tap] = field(default_factory=list)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)
    untapped: dict[str, str] = field(default_factory=dict)
    _rowed: dict[int, torch.Tensor] = field(default_factory=dict)
    """Row digests by the place in `taps`, where the digest of the tap is still to come."""

    def finish(self) -> tuple[Tap, ...]:
        """The taps, with the digests of those that have rows, taken all together."""
        digests = digest_taps(list(self._rowed.values()))
        for number, digest in zip(self._rowed, digests, strict=True):
            self.taps[number] = self.taps[number].model_copy(update={"digest": to_hex(digest)[0]})
        return tuple(self.taps)

    def add(self, entry: Entry) -> None:
        """Merge one site over its passes."""
        chunks = self._usable(entry)
        if chunks:
            self._rows(entry, chunks)
        elif entry.wholes:
            self._whole(entry)

    def _usable(self, entry: Entry) -> list[Chunk]:
        """Chunks that agree on where the token axis is; the rest is listed."""
        site, layout = str(entry.site), entry.layout
        if not entry.chunks or layout is None:
            return []
        if entry.wholes and not layout.sure:
            return []  # token rows were seen only in passes of one row, where everything has one
        axes = (layout.axes, layout.lead)
        chunks = [
            chunk
            for chunk in entry.chunks
            if chunk.layout.sure
            or not layout.sure
            or chunk.layout.split is not None
            or (chunk.layout.axes, chunk.layout.lead) == axes
        ]
        left = sum(len(chunk.chosen.kept_keys) for chunk in entry.chunks) - sum(
            len(chunk.chosen.kept_keys) for chunk in chunks
        )
        if left:
            self.untapped[site] = f"{left} rows of passes in which the token axis could not be told"
        elif entry.wholes:
            self.untapped[site] = f"{len(entry.wholes)} calls had no token rows"
        return chunks

    def _rows(self, entry: Entry, chunks: list[Chunk]) -> None:
        number, rows = len(self.taps), self.sets.of(chunks)
        digests_K2 = torch.cat([chunk.digests for chunk in chunks if chunk.digests is not None]).cpu()
        if bool((digests_K2[rows.again] != digests_K2[rows.first]).any()):
            self.differing.append(str(entry.site))
        digests_U2 = digests_K2[rows.pick_U]
        self.tensors[f"digest.{number}"] = self._rowed[number] = digests_U2
        widths = {chunk.columns for chunk in chunks}
        stored = all(chunk.value is not None for chunk in chunks) and len(widths) == 1
        if len(widths) > 1:
            self.untapped[str(entry.site)] = f"rows of {len(widths)} widths (they depend on the pass): digests only"
        if stored:
            values = [chunk.value for chunk in chunks if chunk.value is not None]
            value_KC = values[0] if len(values) == 1 else torch.cat(values)
            in_order = len(rows.pick_U) == len(value_KC) and bool((rows.pick_U == torch.arange(len(value_KC))).all())
            self.tensors[f"value.{number}"] = value_KC if in_order else value_KC[rows.pick_U]
        for chunk in chunks:
            chunk.value = chunk.digests = None
        self.taps.append(
            Tap(
                site=entry.site,
                order=entry.order,
                dtype=entry.dtype,
                shape=entry.shape,
                strides=entry.strides,
                columns=max(widths) if len(widths) == 1 else 0,
                rowset=rows.number,
                rows=len(rows.keys_U),
                stored=stored,
                digest="",
                producer=entry.producer,
            )
        )

    def _whole(self, entry: Entry) -> None:
        number = len(self.taps)
        digests = torch.stack(entry.wholes)
        if entry.whole is not None:
            self.tensors[f"whole.{number}"] = entry.whole
        one = bool((digests == digests[0]).all())
        digest = digests[0] if one else digest_tap(digests)
        self.tensors[f"digest.{number}"] = digests[:1] if one else digests
        self.taps.append(
            Tap(
                site=entry.site,
                order=entry.order,
                dtype=entry.dtype,
                shape=entry.shape,
                strides=entry.strides,
                columns=0,
                rowset=None,
                rows=0,
                stored=entry.whole is not None,
                digest=to_hex(digest)[0],
                producer=entry.producer,
            )
        )


def missing_rows(keys: torch.Tensor, lengths: Sequence[int] | None, sequences: Sequence[int] | None) -> int:
    """Token rows that were never computed.

    Args:
        keys: unique keys of all rows seen.
        lengths: fed tokens per sequence; None: up to the last position seen of each sequence.
        sequences: the recorded ones; None: all.
    """
    if lengths is not None:
        wanted = range(len(lengths)) if sequences is None else sequences
        return sum(lengths[i] for i in wanted) - len(keys)
    of, position = keys >> 32, keys & 0xFFFFFFFF
    return sum(int(position[of == i].max()) + 1 - int((of == i).sum()) for i in torch.unique(of).tolist())


def write(
    folder: Path,
    recorder: Recorder,
    *,
    lengths: Sequence[int] | None,
    same_logprobs: bool | None,
    environment: Environment | None,
    made_from: dict[str, str],
) -> CaptureManifest:
    """Write the artifact of a finished recorder, freeing what it held."""
    plan = recorder.plan
    assert plan is not None
    merged = Merged()
    for entry in sorted(recorder.sink.store.entries.values(), key=lambda e: e.order):
        merged.add(entry)
    keys = torch.cat(recorder.counts.seen) if recorder.counts.seen else torch.empty(0, dtype=torch.int64)
    unique = torch.unique(keys)
    untapped = recorder.untapped() | merged.untapped
    manifest = CaptureManifest(
        role=recorder.role,
        plan=plan,
        taps=merged.finish(),
        tokens=len(unique),
        passes=recorder.counts.passes,
        recomputed=len(keys) - len(unique),
        recomputed_differing=tuple(merged.differing),
        missing=missing_rows(unique, lengths, plan.sequences),
        same_logprobs=same_logprobs,
        replays=recorder.replays.results(),
        untapped=tuple(f"{name}: {why}" for name, why in untapped.items()),
        made_from=made_from,
        environment=environment or Environment(),
    )
    tensors = merged.tensors | merged.sets.tensors
    recorder.sink.store.drop()
    return artifact.write(folder, manifest, {TENSORS: tensors})
