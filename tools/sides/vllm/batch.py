"""The rows of one forward pass of the engine, by request, and the row map made from them.

Legend: B requests of the pass, T token rows (padding included), R rows that reach the head (one per request).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from samebits.tools.capture.rows import PassRows

PREFIX = "samebits"


def request_id(sequence: int, sampled: int = 0) -> str:
    """Name of a request: its sequence index can be read back; `sampled` tells requests of one sequence apart."""
    return f"{PREFIX}.{sequence}.{sampled}"


def sequence_of(name: str) -> int:
    """Sequence index of an engine request id (the engine appends `-XXXXXXXX`); -1: not one of ours."""
    parts = name.split(".")
    return int(parts[1]) if len(parts) == 3 and parts[0] == PREFIX else -1


@dataclass(slots=True, frozen=True)
class Batch:
    """What the engine's runner says about the pass that is running."""

    requests: list[str]
    """Engine request id of each of the B requests."""
    starts: list[int]
    """Absolute position of each request's first row."""
    lengths: list[int]
    """Rows of each request; together they are the first rows of the pass."""
    padded: int
    """T: rows of the tensors the model sees."""
    input_ids_T: torch.Tensor
    positions_T: torch.Tensor

    @property
    def tokens(self) -> int:
        """Rows that are not padding."""
        return sum(self.lengths)


@dataclass(slots=True)
class Facts:
    """What happened while sequences were scored."""

    passes: int = 0
    mixed_passes: int = 0
    """Passes with both a prefill part of several rows and a decode row."""
    largest_batch: int = 0
    largest_pass: int = 0
    """Most rows in one pass."""
    chunked_prefills: int = 0
    """Requests whose prompt was computed in more than one pass."""
    recomputed_rows: int = 0
    """Rows computed again after preemption."""
    forced: int = 0
    overruled: int = 0
    """Forced tokens that the sampler had not drawn itself."""


@dataclass(slots=True)
class EngineRows:
    """RowMap of the engine: kept by the worker's control, read by the recorder."""

    sequences: list[list[int]]
    """Prompt and sampled tokens of each sequence."""
    prompts: list[int]
    """Prompt length of each sequence."""
    follows: bool = True
    """The engine is made to follow the sequences; False: behind the prompts it goes its own way."""
    kept: frozenset[str] | None = None
    """Names (`request_id`) of the requests whose rows count; None: all. The rows of others have no sequence."""
    facts: Facts = field(default_factory=Facts)
    batch: Batch | None = None
    _rows: PassRows | None = None
    _reached: dict[str, int] = field(default_factory=dict)
    _chunked: set[str] = field(default_factory=set)

    def enter(self, batch: Batch, metadata: Any) -> None:
        """Take over a pass; every independent source must agree with it.

        Args:
            metadata: the attention backend's own metadata of the pass, or None where there is none.
        """
        sequence_T = torch.full((batch.padded,), -1, dtype=torch.int32)
        position_T = torch.zeros(batch.padded, dtype=torch.int32)
        at = 0
        for name, start, length in zip(batch.requests, batch.starts, batch.lengths, strict=True):
            sequence_T[at : at + length] = self._counted(name)
            position_T[at : at + length] = torch.arange(start, start + length, dtype=torch.int32)
            at += length
        ends_B = torch.tensor(batch.lengths, dtype=torch.int64).cumsum(0)
        self.batch = batch
        self._rows = PassRows(sequence_T, position_T, None, ends_B - 1)
        self._check(batch, self._rows, metadata)
        self._count(batch)

    def current(self) -> PassRows:
        """Rows of the pass that is running now."""
        assert self._rows is not None, "asked for rows outside a pass"
        return self._rows

    def _counted(self, name: str) -> int:
        """`sequence_of` a request whose rows count, else -1."""
        return sequence_of(name) if self.kept is None or name.rsplit("-", 1)[0] in self.kept else -1

    def _check(self, batch: Batch, rows: PassRows, metadata: Any) -> None:
        count = batch.tokens
        sequence, position = rows.sequence_T[:count].tolist(), rows.position_T[:count].tolist()
        positions = batch.positions_T[..., :count]
        told = (positions if positions.dim() == 1 else positions[0]).tolist()
        assert told == position, "the positions given to the model are not those of the row map"
        fed = batch.input_ids_T[:count].tolist()
        for row, (s, p) in enumerate(zip(sequence, position, strict=True)):
            own = s < 0 or (not self.follows and p >= self.prompts[s])
            assert own or fed[row] == self.sequences[s][p], (
                f"row {row} should be token {p} of sequence {s} ({self.sequences[s][p]}), the engine feeds {fed[row]}"
            )
        if metadata is not None:
            size = len(batch.requests)
            edges = [0, *(rows.head_R + 1).tolist()] if rows.head_R is not None else []
            assert metadata.query_start_loc[: size + 1].tolist() == edges, "attention metadata has other row borders"
            lengths = [start + length for start, length in zip(batch.starts, batch.lengths, strict=True)]
            assert metadata.seq_lens[:size].tolist() == lengths, "attention metadata has other sequence lengths"

    def _count(self, batch: Batch) -> None:
        facts = self.facts
        facts.passes += 1
        facts.largest_batch = max(facts.largest_batch, len(batch.requests))
        facts.largest_pass = max(facts.largest_pass, batch.tokens)
        facts.mixed_passes += any(n > 1 for n in batch.lengths) and any(n == 1 for n in batch.lengths)
        for name, start, length in zip(batch.requests, batch.starts, batch.lengths, strict=True):
            reached = self._reached.get(name, 0)
            facts.recomputed_rows += max(0, min(reached, start + length) - start)
            sequence = sequence_of(name)
            prompt = self.prompts[sequence] if sequence >= 0 else 0
            if reached <= start and start + length < prompt and name not in self._chunked:
                self._chunked.add(name)
                facts.chunked_prefills += 1
            self._reached[name] = max(reached, start + length)

    def forced(self, sampled_R: torch.Tensor) -> torch.Tensor:
        """The ids that must come out of this pass in place of the drawn ones; unfinished prompts keep theirs."""
        assert self.batch is not None
        if not self.follows:
            return sampled_R
        assert len(sampled_R) == len(self.batch.requests), "the sampler has other rows than the pass has requests"
        drawn = sampled_R.tolist()
        wanted = list(drawn)
        for row, (name, start, length) in enumerate(
            zip(self.batch.requests, self.batch.starts, self.batch.lengths, strict=True)
        ):
            sequence, at = sequence_of(name), start + length
            if sequence >= 0 and self.prompts[sequence] <= at < len(self.sequences[sequence]):
                wanted[row] = self.sequences[sequence][at]
                self.facts.forced += 1
        self.facts.overruled += sum(a != b for a, b in zip(drawn, wanted, strict=True))
        return torch.tensor(wanted, dtype=sampled_R.dtype, device=sampled_R.device)

    def judged(self) -> list[int]:
        """Head rows of this pass whose sampled token counts: those at or behind the end of the sequence's prompt."""
        assert self.batch is not None
        return [
            row
            for row, (name, start, length) in enumerate(
                zip(self.batch.requests, self.batch.starts, self.batch.lengths, strict=True)
            )
            if (sequence := self._counted(name)) >= 0
            and self.prompts[sequence] <= start + length < len(self.sequences[sequence])
        ]
