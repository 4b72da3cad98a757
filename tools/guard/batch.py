"""What a training loop hands to the guard: checked, and stored when it differs.

Legend: B sequences, L padded length, N sampled tokens in all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch

from samebits.tools.schema.errors import UserError
from samebits.tools.sides.protocol import RolloutData, Sequence

if TYPE_CHECKING:
    from collections.abc import Sequence as Row
    from pathlib import Path

Ids = list[Sequence]
SHOULD = "hand over what the engine reported and what the trainer recomputed, token by token"


@dataclass(slots=True, frozen=True)
class Batch:
    """One batch on one device."""

    rollout_lp: torch.Tensor
    trainer_lp: torch.Tensor
    mask: torch.Tensor
    """bool."""
    weight_version: int
    ids: Ids | None

    @classmethod
    def of(
        cls,
        rollout_lp: torch.Tensor,
        trainer_lp: torch.Tensor,
        mask: torch.Tensor,
        weight_version: int,
        prompt_ids: Row[Row[int]] | None,
        sampled_ids: Row[Row[int]] | None,
    ) -> Self:
        """Check and bring to the trainer's device (a copy moves no bit).

        Raises:
            UserError: see `Guard.check`.
        """
        named = {"rollout_lp": rollout_lp, "trainer_lp": trainer_lp, "mask": mask}
        for name, tensor in named.items():
            if not isinstance(tensor, torch.Tensor):
                raise UserError(name, f"a {type(tensor).__name__}, not a tensor", SHOULD)
            if tensor.shape != rollout_lp.shape or tensor.dim() not in (1, 2):
                shapes = ", ".join(
                    f"{key} {tuple(value.shape)}" for key, value in named.items() if hasattr(value, "shape")
                )
                raise UserError(name, f"shapes must be equal, [N] or [B, L]; got {shapes}", SHOULD)
        for name, tensor in (("rollout_lp", rollout_lp), ("trainer_lp", trainer_lp)):
            if tensor.dtype != torch.float32:
                raise UserError(
                    name,
                    f"{tensor.dtype}, not float32: bits of another dtype say nothing about the logprob",
                    "keep logprobs in float32 from the log_softmax on",
                )
        if mask.is_floating_point() or mask.is_complex():
            raise UserError("mask", f"{mask.dtype}, not bool or integer: a weight is no mask", "pass mask.bool()")
        if type(weight_version) is not int or weight_version < 0:
            raise UserError(f"weight_version = {weight_version!r}", "not a count from 0", "count the updates pushed")
        device = trainer_lp.device
        return cls(
            rollout_lp.detach().to(device),
            trainer_lp.detach(),
            mask.detach().to(device).bool(),
            weight_version,
            _ids(rollout_lp, prompt_ids, sampled_ids),
        )

    def write(self, folder: Path, temperature: float, top_p: float, top_k: int, logprobs: str) -> Path:
        """Store the tensors as given (batch.safetensors), and with ids a Rollout artifact `folder/rollout`.

        Returns:
            The Rollout artifact, or without ids the safetensors file.
        """
        from safetensors.torch import save_file

        from samebits.tools.sides import rollout_store

        tensors = {"rollout": self.rollout_lp, "trainer": self.trainer_lp, "mask": self.mask}
        path = folder / "batch.safetensors"
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, path)
        if self.ids is None:
            return path
        data = RolloutData(
            self.ids,
            self._flat(self.rollout_lp.cpu()),
            self._flat(self.mask.cpu()),
            temperature,
            top_p,
            top_k,
            logprobs,
            self.weight_version,
        )
        notes = ("stored by samebits.tools.guard: some valid token differs between rollout and trainer",)
        rollout_store.write(folder / "rollout", data, side="guard", notes=notes)
        return folder / "rollout"

    def _flat(self, values: torch.Tensor) -> torch.Tensor:
        assert self.ids is not None
        if values.dim() == 1:
            return values.clone()
        return torch.cat([row_L[: len(s.sampled)] for row_L, s in zip(values, self.ids, strict=True)])


def _ids(lp: torch.Tensor, prompt_ids: Row[Row[int]] | None, sampled_ids: Row[Row[int]] | None) -> Ids | None:
    if prompt_ids is None and sampled_ids is None:
        return None
    if prompt_ids is None or sampled_ids is None or len(prompt_ids) != len(sampled_ids):
        raise UserError("token ids", "prompt_ids and sampled_ids must come together, one of each per sequence", SHOULD)
    sequences = [
        Sequence([int(t) for t in prompt], [int(t) for t in sampled])
        for prompt, sampled in zip(prompt_ids, sampled_ids, strict=True)
    ]
    empty = next((i for i, sequence in enumerate(sequences) if not sequence.prompt), None)
    if empty is not None:
        raise UserError(f"prompt_ids[{empty}]", "empty: the first sampled token has nothing before it", SHOULD)
    lengths = [len(sequence.sampled) for sequence in sequences]
    if lp.dim() == 1 and sum(lengths) != len(lp):
        raise UserError("sampled_ids", f"{sum(lengths)} tokens in all for {len(lp)} logprobs", SHOULD)
    if lp.dim() == 2 and (len(lengths) != len(lp) or max(lengths, default=0) > lp.shape[1]):
        raise UserError(
            "sampled_ids", f"{len(lengths)} rows of up to {max(lengths, default=0)} for {tuple(lp.shape)}", SHOULD
        )
    return sequences
