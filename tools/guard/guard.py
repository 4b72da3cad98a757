"""`Guard.check` before each update: are rollout and trainer logprobs of this batch equal to the bit?

Legend: B sequences, L padded length, N sampled tokens in all.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from samebits.tools.guard.batch import Batch, Ids
from samebits.tools.measure import gap
from samebits.tools.schema.artifacts.gap import GapStats
from samebits.tools.schema.base import Model
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

LINES = "guard.jsonl"


class NotExact(Exception):
    """Some valid token has other bits on the two sides. `stats` are the figures, `stored` is where the batch lies."""

    def __init__(self, message: str, stats: GapStats, stored: Path | None) -> None:
        super().__init__(message)
        self.stats = stats
        self.stored = stored


class Line(Model):
    """One line of guard.jsonl: the figures of one batch."""

    time: float
    """Unix seconds."""
    call: int
    """From 1, counted by this Guard."""
    weight_version: int
    tokens: int
    nonzero: int
    nonfinite: int
    max: float
    mean: float
    std: float
    k3: float
    stored: str = ""
    """Where the batch was stored, when it was."""


@dataclass(slots=True)
class Guard:
    """Keeps watch over one training run (one rank: give every rank a folder of its own).

    Args:
        folder: guard.jsonl and stored batches go here; made if missing, appended to if not.
        on_difference: "raise" NotExact at every batch that differs, or "continue" (the line says it).
        temperature, top_p, top_k, logprobs: how the rollout was sampled and what its logprobs mean; written into a
            stored Rollout, so that `samebits diff --rollout` recomputes the same quantity.
    """

    folder: Path | str
    on_difference: Literal["raise", "continue"] = "raise"
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    logprobs: Literal["raw", "processed"] = "processed"
    stored: Path | None = field(default=None, init=False)
    """Where the first batch that differed lies."""
    _calls: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.on_difference not in ("raise", "continue"):
            raise UserError(f"on_difference = {self.on_difference!r}", "not known", 'say "raise" or "continue"')
        self.folder = Path(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def check(
        self,
        rollout_lp: torch.Tensor,
        trainer_lp: torch.Tensor,
        mask: torch.Tensor,
        weight_version: int,
        *,
        prompt_ids: Sequence[Sequence[int]] | None = None,
        sampled_ids: Sequence[Sequence[int]] | None = None,
    ) -> GapStats:
        """Compare one batch, write one line, store the first batch that differs. One device reduction, one transfer.

        Args:
            rollout_lp: float32, nats, as the engine reported them: [N], or [B, L] padded on the right.
            trainer_lp: float32 of the same shape, recomputed before the update; its device is where the work is done.
            mask: bool or integer of the same shape; 0 where a token does not count.
            weight_version: of the weights that both sides had.
            prompt_ids, sampled_ids: token ids of each sequence; a batch that differs is then stored as a Rollout from
                which `samebits diff --rollout` starts. Row b of [B, L] begins with the logprobs of sampled_ids[b]; [N]
                is all of them, one sequence after the other.

        Returns:
            The figures over the valid tokens.

        Raises:
            UserError: not tensors of one shape and of these dtypes, ids that do not fit them, no valid token, a valid
                token whose logprob is not finite.
            NotExact: a valid token differs and `on_difference` is "raise".
        """
        batch = Batch.of(rollout_lp, trainer_lp, mask, weight_version, prompt_ids, sampled_ids)
        self._calls += 1
        stats = gap.stats(batch.rollout_lp, batch.trainer_lp, batch.mask)
        bad = stats.nonzero > 0 or stats.nonfinite > 0
        stored = self._store(batch) if bad and self.stored is None else None
        self._write(weight_version, stats, stored)
        if stats.tokens == 0:
            raise UserError(
                f"batch {self._calls} of weight version {weight_version}",
                "no valid token: nothing was compared, so nothing is proved",
                "check its mask",
            )
        if stats.nonfinite:
            raise UserError(
                f"batch {self._calls} of weight version {weight_version}",
                f"{stats.nonfinite} of {stats.tokens} valid tokens have a logprob that is NaN or infinite"
                + self._where(batch.ids),
                "find out which side made it (a token cut by top-k or top-p has minus infinity), or mask it",
            )
        if stats.nonzero and self.on_difference == "raise":
            raise NotExact(self._message(weight_version, stats, batch.ids), stats, self.stored)
        return stats

    def _message(self, weight_version: int, stats: GapStats, ids: Ids | None) -> str:
        return (
            f"rollout and trainer logprobs differ at {stats.nonzero} of {stats.tokens} valid tokens (weight version "
            f"{weight_version}; max {stats.max:.3g}, mean {stats.mean:.3g}, std {stats.std:.3g}, k3 {stats.k3:.3g})"
            + self._where(ids)
        )

    def _where(self, ids: Ids | None) -> str:
        if ids is None:
            return f"; batch stored in {self.stored}. Give prompt_ids and sampled_ids so that samebits diff can use it"
        return f"; next: samebits diff --rollout {self.stored}"

    def _write(self, weight_version: int, stats: GapStats, stored: Path | None) -> None:
        line = Line(
            time=time.time(),
            call=self._calls,
            weight_version=weight_version,
            stored=str(stored or ""),
            **stats.model_dump(),
        )
        with (Path(self.folder) / LINES).open("a", encoding="utf-8") as file:
            file.write(line.model_dump_json() + "\n")

    def _store(self, batch: Batch) -> Path:
        number = 1
        while (folder := Path(self.folder) / f"difference-{number}").exists():
            number += 1
        folder.mkdir()
        self.stored = batch.write(folder, self.temperature, self.top_p, self.top_k, self.logprobs)
        return self.stored
