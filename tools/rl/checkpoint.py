"""Metrics and checkpoints of one loop. A checkpoint holds all that the next step depends on; resuming moves no bit.

What is not in it is drawn anew from (seed, batch number): prompts and the seeds of the engine's sampling.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.rl.links import link_or_copy
from samebits.tools.schema.artifacts.rl import StepLine
from samebits.tools.schema.errors import UserError
from samebits.tools.sides.protocol import RolloutData, Sequence
from samebits.tools.sides.vllm.live import Head

if TYPE_CHECKING:
    from samebits.tools.rl.loop import Loop
    from samebits.tools.schema.experiment import Rl

METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint.pt"
BYTES = 12
"""Of a checkpoint per parameter: float32 master weight and both moments of AdamW."""
WRITTEN_PER_S = 1e9
"""Bytes of a checkpoint that a disk takes in a second, roughly: the time kept back for one when time runs out."""


def check_disk(folder: Path, parameters: int, settings: Rl, limited: bool, models: int = 0) -> None:
    """Whether all that a loop will hold at once fits on the disk of `folder`.

    Args:
        parameters: of the model.
        limited: the run may end early, with a checkpoint.
        models: copies of the weights, 2 bytes each, that are yet to be written.

    Raises:
        UserError: it does not fit.
    """
    written = (settings.steps - 1) // settings.checkpoint_every + settings.keep_checkpoint + limited
    # The one before stays until the next is whole.
    need = parameters * (BYTES * min(2, written) + 2 * models)
    free = shutil.disk_usage(folder).free
    if need > free:
        raise UserError(
            f"the disk of {folder}",
            f"has {free / 2**30:.1f} GiB free; checkpoints of {parameters / 1e9:.2f}e9 parameters need "
            f"{need / 2**30:.1f} GiB ({BYTES} bytes per parameter; while one is written the one before it stays)",
            "set [rl] checkpoint_every to the number of steps (then none is written), or choose a larger disk (--out)",
        )


@dataclass(slots=True)
class Store:
    """The folder of one loop."""

    folder: Path

    def append(self, line: StepLine) -> None:
        """One line of metrics.jsonl."""
        with (self.folder / METRICS).open("a", encoding="utf-8") as file:
            file.write(line.model_dump_json() + "\n")

    def lines(self) -> list[StepLine]:
        """All whole lines; a last line cut short by a kill is not one."""
        path = self.folder / METRICS
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        whole = text[: text.rfind("\n") + 1]
        return [StepLine.model_validate_json(line) for line in whole.splitlines()]

    def save(self, loop: Loop) -> None:
        """Write the checkpoint: whole, or the one before it stays."""
        state = {
            "step": loop.step,
            "drawn": loop.drawn,
            "version": loop.engine.version,
            "policy": loop.policy.state(),
            "waiting": [_packed(batch) for batch in loop.waiting],
        }
        part = self.folder / (CHECKPOINT + ".part")
        torch.save(state, part)
        os.replace(part, self.folder / CHECKPOINT)

    def take_over(self, earlier: Path) -> None:
        """The metrics and the checkpoint of an earlier run of this loop, where there is one."""
        if (earlier / METRICS).is_file():
            shutil.copyfile(earlier / METRICS, self.folder / METRICS)
        if (earlier / CHECKPOINT).is_file():
            link_or_copy(str(earlier / CHECKPOINT), str(self.folder / CHECKPOINT))

    def drop(self) -> None:
        """The loop has ended: its checkpoint is of no more use."""
        (self.folder / CHECKPOINT).unlink(missing_ok=True)

    def restore(self, loop: Loop) -> int | None:
        """Bring the loop to the checkpoint, push its weights, forget metrics of later steps; the step it stands at.

        Raises:
            UserError: a damaged checkpoint, or one of another model.
        """
        path = self.folder / CHECKPOINT
        if not path.is_file():
            (self.folder / METRICS).unlink(missing_ok=True)
            return None
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            loop.policy.restore(state["policy"])
        except Exception as error:  # torch raises many kinds for a file it cannot read
            raise UserError(str(path), f"cannot be resumed from ({error})", "start the run anew") from error
        loop.step, loop.drawn = state["step"], state["drawn"]
        loop.waiting = deque(_unpacked(batch) for batch in state["waiting"])
        loop.policy.push(loop.engine.llm)
        loop.engine.version = state["version"]
        kept = self.lines()[: loop.step]
        part = self.folder / (METRICS + ".part")
        part.write_text("".join(line.model_dump_json() + "\n" for line in kept), encoding="utf-8")
        os.replace(part, self.folder / METRICS)
        return loop.step


def _packed(batch: Any) -> dict[str, Any]:
    data: RolloutData = batch.data
    return {
        "prompts": [sequence.prompt for sequence in data.sequences],
        "sampled": [sequence.sampled for sequence in data.sequences],
        "logprob": data.logprob_N,
        "valid": data.valid_N,
        "temperature": data.temperature,
        "version": data.weight_version,
        "reward": batch.reward_S,
        "head": None if batch.head is None else [batch.head.id_NK, batch.head.logprob_NK],
    }


def _unpacked(stored: dict[str, Any]) -> Any:
    from samebits.tools.rl.loop import Sampled

    data = RolloutData(
        [Sequence(p, s) for p, s in zip(stored["prompts"], stored["sampled"], strict=True)],
        stored["logprob"],
        stored["valid"],
        temperature=stored["temperature"],
        weight_version=stored["version"],
    )
    head = stored["head"]
    return Sampled(data, stored["reward"], None if head is None else Head(*head))
