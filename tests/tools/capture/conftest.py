"""A toy decoder whose arithmetic is exact (small integers in float32), so its bits do not depend on batching.

Legend: T token rows, B sequences of a batch, L its length, H hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from samebits.tools.capture.rows import PassRows

HIDDEN, VOCABULARY, LAYERS = 8, 32, 2


class Norm(torch.nn.Module):
    """Adds its weight in place: what came in is overwritten, as fused norms do."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(integers(HIDDEN, seed=seed))

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        x.add_(self.weight)
        return x, residual


class Mix(torch.nn.Module):
    """Running sum over the positions of each sequence: attention's role, with a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, torch.Tensor] = {}

    def forward(self, x: torch.Tensor, *, rows: PassRows) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        out = torch.zeros_like(flat)
        for i, (sequence, position) in enumerate(zip(rows.sequence_T.tolist(), rows.position_T.tolist(), strict=True)):
            if sequence >= 0:
                before = self.cache[sequence] if position else torch.zeros_like(flat[i])
                self.cache[sequence] = out[i] = (before + flat[i]) % 64
        return out.view(x.shape)


class Layer(torch.nn.Module):
    def __init__(self, seed: int, shift: torch.nn.Module) -> None:
        super().__init__()
        self.norm, self.mix, self.up = Norm(seed), Mix(), torch.nn.Linear(HIDDEN, 2 * HIDDEN, bias=False)
        self.down = torch.nn.Linear(2 * HIDDEN, HIDDEN, bias=False)
        self.shift = shift
        self.up.weight = torch.nn.Parameter(integers(2 * HIDDEN, HIDDEN, seed=seed + 1))
        self.down.weight = torch.nn.Parameter(integers(HIDDEN, 2 * HIDDEN, seed=seed + 2))

    def forward(self, x: torch.Tensor, rows: PassRows) -> torch.Tensor:
        y, _ = self.norm(x.clone(), residual=None)
        y = self.shift(self.mix(y, rows=rows))
        return (x + self.down(self.up(y).clamp(min=0))) % 64


class Shift(torch.nn.Module):
    """One object in every layer, like a rotary embedding."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Toy(torch.nn.Module):
    """Token ids [T], [1, T] or [B, L] to logits of the head rows."""

    def __init__(self) -> None:
        super().__init__()
        shift = Shift()
        self.embed = torch.nn.Embedding(VOCABULARY, HIDDEN)
        self.embed.weight = torch.nn.Parameter(integers(VOCABULARY, HIDDEN, seed=1))
        self.layers = torch.nn.ModuleList(Layer(10 * i, shift) for i in range(LAYERS))
        self.head = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.head.weight = torch.nn.Parameter(integers(VOCABULARY, HIDDEN, seed=2))

    def forward(self, ids: torch.Tensor, rows: PassRows) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, rows)
        flat = x.reshape(-1, HIDDEN)
        return self.head(flat if rows.head_R is None else flat[rows.head_R])


def integers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).float()


@dataclass
class Runs:
    """Sequences and the ways to compute them; also the row map."""

    model: Toy
    sequences: list[list[int]]
    rows: PassRows | None = None
    logits: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def current(self) -> PassRows:
        assert self.rows is not None
        return self.rows

    def feed(self, ids: torch.Tensor, rows: PassRows) -> None:
        self.rows = rows
        with torch.no_grad():
            out = self.model(ids, rows)
        index = range(len(rows.sequence_T)) if rows.head_R is None else rows.head_R.tolist()
        for row, i in zip(out, index, strict=True):
            self.logits[int(rows.sequence_T[i]), int(rows.position_T[i])] = row

    def flat(self, parts: list[tuple[int, int, int]], *, wrapped: bool = False, head: bool = True) -> None:
        """One pass over (sequence, first position, end) parts, as an engine packs them."""
        ids = torch.tensor([self.sequences[s][p] for s, a, b in parts for p in range(a, b)])
        sequence = torch.tensor([s for s, a, b in parts for _ in range(a, b)], dtype=torch.int32)
        position = torch.tensor([p for _, a, b in parts for p in range(a, b)], dtype=torch.int32)
        last = torch.tensor([b - a for _, a, b in parts]).cumsum(0) - 1
        rows = PassRows(sequence, position, (1, len(ids)) if wrapped else None, last if head else None)
        self.feed(ids[None] if wrapped else ids, rows)

    def padded(self, chosen: list[int]) -> None:
        """One right-padded batch."""
        width = max(len(self.sequences[s]) for s in chosen)
        ids = torch.zeros(len(chosen), width, dtype=torch.int64)
        sequence = torch.full((len(chosen), width), -1, dtype=torch.int32)
        position = torch.arange(width, dtype=torch.int32).repeat(len(chosen), 1)
        for i, s in enumerate(chosen):
            ids[i, : len(self.sequences[s])] = torch.tensor(self.sequences[s])
            sequence[i, : len(self.sequences[s])] = s
        self.feed(ids, PassRows(sequence.view(-1), position.view(-1), (len(chosen), width), None))

    def decode(self, order: list[int]) -> None:
        """Prompts of two tokens in one pass, then one token per sequence and pass, sequences in this order."""
        self.flat([(s, 0, 2) for s in order], head=False)
        for p in range(2, max(len(s) for s in self.sequences)):
            self.flat([(s, p, p + 1) for s in order if p < len(self.sequences[s])], head=False)

    @property
    def lengths(self) -> list[int]:
        return [len(s) for s in self.sequences]


@pytest.fixture
def runs() -> Runs:
    generator = torch.Generator().manual_seed(3)
    lengths = (5, 9, 3, 6)
    return Runs(Toy().eval(), [torch.randint(0, VOCABULARY, (n,), generator=generator).tolist() for n in lengths])
