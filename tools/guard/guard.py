"""`Guard.check` before each update: are rollout and trainer logprobs of this batch equal to the bit?

Legend: B sequences, L padded length, N sampled tokens in all.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from samebits.tools.guard import record
from samebits.tools.guard.batch import Batch
from samebits.tools.guard.record import Line, Stored
from samebits.tools.measure import gap
from samebits.tools.schema.artifacts.gap import GapStats
from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence


class NotExact(Exception):
    """Some valid token has other bits on the two sides.

    `stats` are the figures; `stored` is where this batch lies, None where an earlier one is stored or none could be.
    """

    def __init__(self, message: str, stats: GapStats, stored: Path | None) -> None:
        super().__init__(message)
        self.stats = stats
        self.stored = stored


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
    _first: Stored | None = field(default=None, init=False)
    _calls: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.on_difference not in ("raise", "continue"):
            raise UserError(f"on_difference = {self.on_difference!r}", "not known", 'say "raise" or "continue"')
        try:
            self.folder = Path(self.folder)
            self.folder.mkdir(parents=True, exist_ok=True)
        except (OSError, TypeError, ValueError) as error:
            raise UserError(
                f"Guard's folder {str(self.folder)!r}",
                f"cannot be made ({record.reason(error)})",
                "name a folder that this user may write to",
            ) from error

    @property
    def stored(self) -> Path | None:
        """Where the first batch that differed lies."""
        return self._first.path if self._first else None

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
        """Compare one batch, write one line, store the first batch that differs, and the first one with ids where that
        had none. One device reduction, one transfer.

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

        Warns:
            UserWarning: a line or a batch could not be written (the disk is full, the folder is gone) and nothing else
                is raised.
        """
        batch = Batch.of(rollout_lp, trainer_lp, mask, weight_version, prompt_ids, sampled_ids)
        self._calls += 1
        stats = gap.stats(batch.rollout_lp, batch.trainer_lp, batch.mask)
        bad = stats.nonzero > 0 or stats.nonfinite > 0
        first = self._first
        kept = self._store(batch) if bad and (first is None or (batch.ids and not first.ids)) else None
        unwritten = self._write(weight_version, stats, kept)
        told = self._told(kept) + unwritten if bad else unwritten
        if stats.tokens == 0:
            raise UserError(
                f"batch {self._calls} of weight version {weight_version}",
                f"no valid token: nothing was compared, so nothing is proved{told}",
                "check its mask",
            )
        if stats.nonfinite:
            raise UserError(
                f"batch {self._calls} of weight version {weight_version}",
                f"{stats.nonfinite} of {stats.tokens} valid tokens have a logprob that is NaN or infinite{told}",
                "find out which side made it (a token cut by top-k or top-p has minus infinity), or mask it",
            )
        if stats.nonzero and self.on_difference == "raise":
            where = kept.path if isinstance(kept, Stored) else None
            raise NotExact(f"{_figures(weight_version, stats)}{told}; next: {self._next(kept)}", stats, where)
        if isinstance(kept, str) or unwritten:
            said = f": {_figures(weight_version, stats)}" if bad else ""
            warnings.warn(f"samebits guard: batch {self._calls}{said}{told}; next: {self._writable()}", stacklevel=2)
        return stats

    def _told(self, kept: Stored | str | None) -> str:
        """Of a batch that differs: where it lies, or why it does not."""
        if isinstance(kept, Stored):
            return f"; stored in {kept.path}"
        if isinstance(kept, str):
            return f"; could not be stored: {kept}"
        first = self._first
        assert first is not None
        return (
            f"; not stored: what lies in {first.path} is an earlier batch (call {first.call}, weight version "
            f"{first.weight_version})"
        )

    def _next(self, kept: Stored | str | None) -> str:
        first = self._first
        if isinstance(kept, str) or first is None:
            return self._writable()
        if not first.ids:
            return "give prompt_ids and sampled_ids, so that samebits diff can use a batch"
        which = "" if kept else f", which starts from the batch of call {first.call}"
        return f"samebits diff --rollout {first.path}{which}"

    def _writable(self) -> str:
        return f"give the guard a folder that can be written to (it is {self.folder})"

    def _write(self, weight_version: int, stats: GapStats, kept: Stored | str | None) -> str:
        line = Line(
            time=time.time(),
            call=self._calls,
            weight_version=weight_version,
            stored=str(kept.path) if isinstance(kept, Stored) else "",
            **stats.model_dump(),
        )
        failed = record.append(Path(self.folder), line)
        return f"; no line of it in {record.LINES}: {failed}" if failed else ""

    def _store(self, batch: Batch) -> Stored | str:
        made = record.store(
            Path(self.folder), lambda at: batch.write(at, self.temperature, self.top_p, self.top_k, self.logprobs)
        )
        if isinstance(made, str):
            return made
        self._first = Stored(made, self._calls, batch.weight_version, batch.ids is not None)
        return self._first


def _figures(weight_version: int, stats: GapStats) -> str:
    return (
        f"rollout and trainer logprobs differ at {stats.nonzero} of {stats.tokens} valid tokens (weight version "
        f"{weight_version}; max {stats.max:.3g}, mean {stats.mean:.3g}, std {stats.std:.3g}, k3 {stats.k3:.3g})"
    )
