"""What a worker process is told to do with its passes: one object per process, idle unless a side has begun something.

The functions here run inside the worker (the side sends them through `LLM.collective_rpc`); the wrappers of install.py
call the object.

Legend: R head rows of a pass, V vocabulary.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samebits.tools.sides.vllm.batch import EngineRows

if TYPE_CHECKING:
    import torch

    from samebits.tools.schema.sites import CapturePlan, Edit
    from samebits.tools.sides.vllm.batch import Batch

LOGPROB = "logprob"
"""Pseudo-module of the side's own logprob step."""


@dataclass(slots=True)
class Control:
    """State of one worker process."""

    rows: EngineRows | None = None
    recorder: Any = None
    taps: Any = None
    """Opaque taps of a compiled model (taps.py), when the engine was opened with them."""
    in_pass: bool = False
    module_calls: dict[str, int] = field(default_factory=dict)
    module_hooks: list[Any] = field(default_factory=list)

    def begin_pass(self, batch: Batch, metadata: Any) -> None:
        """The rows of the next forward pass are known."""
        if self.rows is None:
            return
        self.rows.enter(batch, metadata)
        self.in_pass = True
        if self.recorder is not None:
            self.recorder.begin_pass()
            if self.taps is not None:
                self.taps.clear()

    def end_pass(self) -> None:
        """Tokens of this pass are sampled."""
        if self.rows is None or not self.in_pass:
            return
        self.in_pass = False
        if self.recorder is not None:
            if self.taps is not None and self.recorder.plan is not None:
                self.taps.collect(self.recorder, len(self.rows.current().sequence_T))
            self.recorder.end_pass()

    def sampled(self, sampled_R: torch.Tensor) -> torch.Tensor:
        """Token ids to go on with."""
        if self.rows is None or not self.in_pass:
            return sampled_R
        return self.rows.forced(sampled_R)

    @property
    def wants_logprobs(self) -> bool:
        """Whether the logprob step is recorded."""
        return self.recorder is not None and self.in_pass

    def logprobs(self, logits_RV: torch.Tensor, logprob_R: torch.Tensor) -> None:
        """Record the logprob step of the rows whose token counts; edits of its output are written into `logprob_R`."""
        assert self.rows is not None
        rows = self.rows.current()
        assert rows.head_R is not None
        keep = self.rows.judged()
        if not keep:
            return
        at, own = rows.head_R[keep], logprob_R[keep]
        (edited,) = self.recorder.external(LOGPROB, [logits_RV[keep]], [own], rows.sequence_T[at], rows.position_T[at])
        if edited is not own:
            logprob_R[keep] = edited


CONTROL = Control()


def begin(
    worker: Any,
    sequences: list[list[int]],
    prompts: list[int],
    force: bool,
    plan: CapturePlan | None,
    edits: tuple[Edit, ...],
    kept: frozenset[str] | None = None,
) -> None:
    """Watch the passes from now on: row map, forced ids, and with a plan or edits a recorder around the model. `kept`
    names the requests whose rows the recorder is to see; None: all."""
    CONTROL.rows = EngineRows(sequences, prompts, follows=force, kept=kept)
    CONTROL.in_pass = False
    if plan is not None or edits:
        from samebits.tools.capture.recorder import Recorder

        recorder = Recorder(worker.model_runner.get_model(), CONTROL.rows, plan, edits, role="rollout")
        recorder.__enter__()
        CONTROL.recorder = recorder


def end(worker: Any, folder: str | None, failed: bool) -> dict[str, Any]:
    """Stop watching; write the capture if there is one and nothing failed. Returns the facts of the passes seen."""
    rows, recorder = CONTROL.rows, CONTROL.recorder
    CONTROL.rows = CONTROL.recorder = None
    CONTROL.in_pass = False
    if recorder is not None:
        recorder.__exit__(RuntimeError if failed else None, None, None)
        if folder is not None and not failed and _writes(worker):
            assert rows is not None
            recorder.write(Path(folder), lengths=[len(sequence) - 1 for sequence in rows.sequences])
    return asdict(rows.facts) if rows is not None else {}


def _writes(worker: Any) -> bool:
    return int(getattr(worker, "rank", 0)) == 0


def stop(worker: Any) -> None:
    """Forget everything; the wrappers stay and do nothing."""
    CONTROL.rows = CONTROL.recorder = CONTROL.taps = None
    CONTROL.in_pass = False
