"""What every side that is a PyTorch module shares: scoring, readings, weights, modules, the update step.

Legend: B rows of a batch, L its length, T = B * L, R rows whose logits are asked for, V vocabulary, N sampled tokens.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from samebits.kernels.adapters.setup import machine
from samebits.tools.schema.errors import UserError
from samebits.tools.sides.protocol import Scores, Side
from samebits.tools.sides.scoring.batches import Batch, cut
from samebits.tools.sides.scoring.logprob import Logprob, Processing
from samebits.tools.sides.scoring.readings import COLUMNS, columns
from samebits.tools.sides.scoring.views import module_views, weight_views

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Literal

    from samebits.tools.capture.recorder import Recorder
    from samebits.tools.capture.rows import PassRows
    from samebits.tools.schema.artifacts.weights import SideModules, SideWeights
    from samebits.tools.schema.passes import How, Reading, Step
    from samebits.tools.schema.sites import CapturePlan, Edit
    from samebits.tools.sides.protocol import RolloutData
    from samebits.tools.sides.scoring.batches import Layout


class TorchSide(Side):
    """A module in this process. Subclasses say how a batch becomes logits."""

    module: torch.nn.Module
    """What is tapped and whose parameters are the weights."""
    role: Literal["rollout", "trainer"]
    device: torch.device
    layout: Layout
    micro_batch: int
    limit: int | None
    """Longest sequence in tokens; None: the model names none."""
    vocabulary: int | None

    def __init__(self, formula: Literal["logsumexp", "log_softmax"]) -> None:
        self.logprob = Logprob(formula)
        self.recorder: Recorder | None = None
        """Set while a capture or an edit is on."""
        self._rows: PassRows | None = None
        self._optimizer: torch.optim.Optimizer | None = None

    @abstractmethod
    def logits(self, batch: Batch) -> torch.Tensor:
        """Logits [R, V] of the batch's head rows, in the model's own dtype."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write all weights under checkpoint names into one safetensors file."""

    def numbers(self) -> tuple[dict[str, str | int | float | bool | None], list[str]]:
        """Facts and lines that every PyTorch side has: what its bits depend on."""
        parameters = list(self.module.parameters())
        facts: dict[str, str | int | float | bool | None] = {
            "torch": torch.__version__,
            "model": type(self.module).__name__,
            "layout": self.layout,
            "micro_batch": self.micro_batch,
            "logprob": self.logprob.formula,
            "device": str(self.device),
            "compiled": False,
            "threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "amx": torch.cpu._is_amx_tile_supported(),
            "dtype": ", ".join(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
            "parameters": sum(p.numel() for p in parameters),
        }
        return facts, [f"{key}={value}" for key, value in machine.number_variables(os.environ).items()]

    def current(self) -> PassRows:
        """RowMap: rows of the pass that is running."""
        assert self._rows is not None, "asked for rows outside a pass"
        return self._rows

    def check(self, data: RolloutData) -> None:
        """Refuse sequences this model cannot take.

        Raises:
            UserError: a sequence beyond the model's length, or a token id outside its vocabulary.
        """
        for i, sequence in enumerate(data.sequences):
            length = len(sequence.prompt) + len(sequence.sampled)
            if self.limit is not None and length > self.limit:
                raise data.refused(
                    i,
                    f"{length} tokens, the {self.role} side's model takes {self.limit}",
                    "shorten workload.prompt_tokens or workload.new_tokens, or drop the sequence",
                )
            worst = max((*sequence.prompt, *sequence.sampled), default=0)
            if self.vocabulary is not None and worst >= self.vocabulary:
                raise data.refused(
                    i,
                    f"token id {worst}, the {self.role} side's vocabulary has {self.vocabulary}",
                    "use a rollout of the same model and tokenizer",
                )

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits [R, V] of one batch with the row map set."""
        self._rows = batch.rows
        try:
            return self.logits(batch)
        finally:
            self._rows = None

    def score(
        self, data: RolloutData, how: How, plan: CapturePlan | None, edits: tuple[Edit, ...], folder: Path
    ) -> Scores:
        """See Side.score. `how.concurrency` is the micro batch of the padded and packed layouts (None: the configured
        one); `how.reverse` goes from the last sequence to the first; `how.path`, `chunk` and `warm_prefix` have no
        meaning here.
        """
        self.check(data)
        processing = Processing.of(data)
        count = sum(len(sequence.sampled) for sequence in data.sequences)
        logprob_N = torch.full((count,), torch.nan, dtype=torch.float32)
        scored_N = torch.zeros(count, dtype=torch.bool)
        largest = passes = 0
        layout = how.layout or self.layout
        with (
            torch.set_grad_enabled(how.gradients != "no"),
            self.checkpointing(how.gradients == "checkpointed"),
            self.recorded(data, plan, edits, folder),
        ):
            for batch in cut(data.sequences, layout, how.concurrency or self.micro_batch, reverse=how.reverse):
                self._rows = batch.rows
                logits_RV = self.logits(batch)
                lp_R = self.logprobs(logits_RV, batch.targets_R.to(self.device), processing).float()
                logprob_N[batch.out_R] = lp_R.detach().cpu()
                if how.gradients != "no":
                    # The backward pass itself, so that what is computed again in it is.
                    lp_R.sum().backward()
                    self.module.zero_grad(set_to_none=True)
                self._rows = None
                scored_N[batch.out_R] = True
                largest, passes = max(largest, len(batch.lengths)), passes + 1
        facts = {"largest_batch": largest, "passes": passes, "layout": layout, "gradients": how.gradients}
        return Scores(logprob_N, scored_N, {**facts})

    @contextmanager
    def checkpointing(self, on: bool) -> Iterator[None]:
        """Gradient checkpointing while the block runs, where asked for.

        Raises:
            UserError: this side has none.
        """
        if on:
            raise UserError(
                "gradient checkpointing", f"{type(self).__name__} has no switch for it", "leave this way out"
            )
        yield

    def logprobs(self, logits_RV: torch.Tensor, targets_R: torch.Tensor, processing: Processing) -> torch.Tensor:
        """float32 [R] of the pass that ran last, tapped and edited as module "logprob" when a recorder is on."""
        logprob_R: torch.Tensor = self.logprob(logits_RV, targets_R, processing)
        if self.recorder is not None:
            (logprob_R,) = self.recorder.external("logprob", [logits_RV], [logprob_R])
        return logprob_R

    @contextmanager
    def recorded(
        self, data: RolloutData, plan: CapturePlan | None, edits: tuple[Edit, ...], folder: Path
    ) -> Iterator[None]:
        """Capture and edits around the passes of one score, when asked for."""
        if plan is None and not edits:
            yield
            return
        from samebits.tools.sides.scoring.recording import recorded

        with recorded(self, data, plan, edits, folder):
            yield

    def readings(self, data: RolloutData, readings: tuple[Reading, ...]) -> dict[str, torch.Tensor]:
        """See Side.readings."""
        self.check(data)
        count = sum(len(sequence.sampled) for sequence in data.sequences)
        out = {
            f"{name}.{k}": torch.full((count,), torch.nan, dtype=torch.float64)
            for k in range(len(readings))
            for name in COLUMNS
        }
        with torch.no_grad():
            for shift in sorted({reading.row_shift for reading in readings}):
                for batch in cut(data.sequences, self.layout, self.micro_batch, row_shift=shift):
                    if not len(batch.out_R):
                        continue
                    logits_RV, targets_R = self.forward(batch), batch.targets_R.to(self.device)
                    reported_R = data.logprob_N[batch.out_R].to(self.device)
                    for k, reading in enumerate(readings):
                        if reading.row_shift == shift:
                            for name, column_R in columns(logits_RV, targets_R, reading, reported_R).items():
                                out[f"{name}.{k}"][batch.out_R] = column_R.cpu()
        return out

    def weights(self) -> SideWeights:
        """See Side.weights."""
        return weight_views(self.role, self.module)

    def modules(self) -> SideModules:
        """See Side.modules: one pass over a sequence of a few tokens."""
        from samebits.tools.sides.protocol import Sequence

        batch = next(cut([Sequence([1, 2, 3], [1])], self.layout, 1))
        with torch.no_grad():
            return module_views(self.role, self.module, lambda: self.forward(batch))

    def step(self, data: RolloutData, command: Step) -> dict[str, float]:
        """See Side.step: one update of the policy gradient on random advantages, one number per sequence.

        loss = - mean over valid tokens of advantage * logprob. All parameters must be trainable.
        """
        self.check(data)
        generator = torch.Generator().manual_seed(command.seed)
        advantage_S = torch.randn(len(data.sequences), generator=generator)
        lengths_S = torch.tensor([len(sequence.sampled) for sequence in data.sequences])
        weight_N = advantage_S.repeat_interleave(lengths_S) * data.valid_N.float() / data.valid_N.sum().clamp(min=1)
        optimizer = self._optimizer_for(command)
        optimizer.zero_grad(set_to_none=True)
        processing, loss = Processing.of(data), 0.0
        for batch in cut(data.sequences, self.layout, self.micro_batch):
            lp_R = self.logprob(self.forward(batch), batch.targets_R.to(self.device), processing)
            part = -(lp_R * weight_N[batch.out_R].to(self.device)).sum()
            part.backward()
            loss += float(part.detach())
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        norm = float(torch.linalg.vector_norm(torch.stack([g.float().norm() for g in gradients]))) if gradients else 0.0
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        from pathlib import Path

        self.save(Path(command.save))
        return {"loss": loss, "gradient_norm": norm, "parameters_with_gradient": float(len(gradients))}

    def _optimizer_for(self, command: Step) -> torch.optim.Optimizer:
        if self._optimizer is None:
            kind = torch.optim.SGD if command.optimizer == "sgd" else torch.optim.AdamW
            self._optimizer = kind(self.module.parameters(), lr=command.rate)
        for group in self._optimizer.param_groups:
            group["lr"] = command.rate
        return self._optimizer
