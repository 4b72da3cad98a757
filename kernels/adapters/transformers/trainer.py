"""A patched trainer as a training loop uses it.

Legend: S sequences, T token rows of one packed pass, N sampled tokens in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from samebits.kernels.adapters.errors import PatchError
from samebits.kernels.adapters.setup.proved import Standing
from samebits.kernels.adapters.transformers.engine import Patched

Ids = Sequence[Sequence[int]]


@dataclass(slots=True, frozen=True)
class Trainer:
    """What `patch_trainer` returns. The model stays the caller's: same parameters, names and optimizer."""

    patched: Patched
    standing: Standing
    """Whether samebits.lock proves this set-up."""

    @property
    def lines(self) -> tuple[str, ...]:
        """What ran under the model and how the set-up stands to its proof: for the log of every run."""
        return (str(self.standing), *(str(replaced) for replaced in self.patched.replaced))

    def score(self, prompt_ids: Ids, sampled_ids: Ids, *, temperature: float = 1.0, per_pass: int = 0) -> torch.Tensor:
        """float32 [N], nats: the logprob of every sampled token, one sequence after the other. Differentiable.

        Args:
            prompt_ids, sampled_ids: token ids of each sequence; a prompt holds at least one.
            temperature: that of the rollout; 0 (greedy) leaves the logits as they are.
            per_pass: sequences packed into one forward; 0: all of them. It moves no bit.

        Raises:
            PatchError: ids that do not fit each other, an empty prompt, nothing sampled.
        """
        if len(prompt_ids) != len(sampled_ids) or any(len(prompt) == 0 for prompt in prompt_ids):
            raise PatchError("token ids", "need one non-empty prompt per sampled sequence", "correct them")
        pairs = [(p, s) for p, s in zip(prompt_ids, sampled_ids, strict=True) if len(s)]
        if not pairs:
            raise PatchError("sampled_ids", "hold no token", "score what was sampled")
        step = per_pass or len(pairs)
        parts = [self._pass(pairs[first : first + step], temperature) for first in range(0, len(pairs), step)]
        return torch.cat(parts)

    def _pass(self, pairs: list[tuple[Sequence[int], Sequence[int]]], temperature: float) -> torch.Tensor:
        ids: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        targets: list[int] = []
        for prompt, sampled in pairs:
            # Row p predicts token p + 1; the last sampled token is never fed.
            fed = [*prompt, *sampled[:-1]]
            rows += range(len(ids) + len(prompt) - 1, len(ids) + len(fed))
            targets += sampled
            positions += range(len(fed))
            ids += fed
        model = self.patched.model
        device = next(model.parameters()).device
        as_row: dict[str, Any] = {"dtype": torch.int64, "device": device}
        logits_1NV = model(
            input_ids=torch.tensor([ids], **as_row),
            position_ids=torch.tensor([positions], **as_row),
            use_cache=False,
            logits_to_keep=torch.tensor(rows, **as_row),
        ).logits
        return self.patched.logprob(logits_1NV[0], torch.tensor(targets, **as_row), temperature)

    def checkpoint(self, on: bool = True) -> None:
        """Gradient checkpointing by layers; see `Patched.checkpoint`."""
        self.patched.checkpoint(on)

    def push(self, llm: Any) -> list[str]:
        """The model's weights into a live engine of this process, its cached prefixes forgotten; what was done.

        Raises:
            PatchError: see `adapters.vllm.push`.
        """
        from samebits.kernels.adapters.vllm.push import push

        return push(llm, self.patched.model)

    def read_back(self) -> dict[str, tuple[str, int]]:
        """Role -> the operator that plays it and how often it really ran."""
        return self.patched.read_back()

    def undo(self) -> None:
        """Put every stock forward back."""
        self.patched.undo()
