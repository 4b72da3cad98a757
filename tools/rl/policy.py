"""The trainer of the loop: a transformers model, float32 master weights, AdamW.

Legend: N sampled tokens in all, R rows of a pass, V vocabulary, K tokens of the sampler's head.
"""

from __future__ import annotations

import hashlib
import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from samebits.kernels.adapters.transformers.checkpoint import checkpoint_tensors
from samebits.kernels.api import patch_trainer
from samebits.tools.diff.digest import digest_rows
from samebits.tools.rl import centering
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.passes import Open
from samebits.tools.sides.scoring.batches import cut
from samebits.tools.sides.scoring.logprob import Processing
from samebits.tools.sides.transformers.side import TransformersSide

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from samebits.tools.schema.experiment import Rl, Trainer
    from samebits.tools.sides.protocol import RolloutData
    from samebits.tools.sides.vllm.live import Head


@dataclass(slots=True, frozen=True)
class Centered:
    """What Score Centering adds to a batch."""

    head: Head
    scale_N: torch.Tensor
    """Advantage times scale of every sampled token."""
    cap: float


@dataclass(slots=True)
class Policy:
    """The passes see the model's own parameters; the optimizer moves `master`, and each update rounds it into them."""

    side: TransformersSide
    parameters: list[torch.nn.Parameter]
    master: list[torch.Tensor]
    optimizer: torch.optim.Optimizer
    clip: float
    patched: Any = None
    """What patch_trainer returned; None: stock transformers."""
    first: int = 0
    """Sequence of the batch with which the pass that is running begins."""

    @classmethod
    def load(cls, folder: Path, config: Trainer, device: str, settings: Rl) -> Policy:
        """Load the model, unpatched.

        Raises:
            UserError: a folder that cannot be loaded.
        """
        stock = config.model_copy(update={"kernels": "none"})
        asked = {"role": "trainer", "config": stock, "model": str(folder), "device": device}
        side = TransformersSide.load(Open.model_validate(asked))
        parameters = [p for p in side.module.parameters() if p.requires_grad]
        master = [p.detach().float().clone() for p in parameters]
        # One tensor at a time: the bits of an update must not depend on how tensors are grouped.
        optimizer = torch.optim.AdamW(master, lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.0, foreach=False)
        return cls(side, parameters, master, optimizer, settings.clip)

    def patch(self, kernels: str) -> None:
        """Put the engine's operators under the model."""
        self.patched = patch_trainer(self.side.module, kernels=kernels)

    def unpatch(self) -> None:
        """The stock model again."""
        self.patched.undo()
        self.patched = None

    def recompute(self, data: RolloutData) -> torch.Tensor:
        """float32 [N], nats, on CPU: the logprob of every sampled token at the present weights.

        Raises:
            UserError: a sequence beyond the model's length, or a token outside its vocabulary.
        """
        self.side.check(data)
        with torch.no_grad():
            return torch.cat([lp_R.cpu() for _, lp_R, _ in self._passes(data)])

    def gradient(self, data: RolloutData, coefficient_N: torch.Tensor, centered: Centered | None = None) -> float:
        """Gradient of -sum(coefficient * logprob) into every parameter's `grad`; returns that loss.

        Args:
            coefficient_N: float32 on CPU: advantage * weight * scale of every sampled token.
        """
        self.side.check(data)
        self.side.module.zero_grad(set_to_none=True)
        loss = 0.0
        for place, lp_R, logits_RV in self._passes(data):
            part = -(lp_R * coefficient_N[place].to(lp_R.device)).sum()
            if centered is not None:
                assert logits_RV is not None, "Score Centering is measured on the stock trainer"
                part = part + _centering(logits_RV, place, Processing.of(data).temperature, centered)
            with _deterministic(self.side.device):
                part.backward()
            loss += float(part.detach())
        return loss

    def _passes(self, data: RolloutData) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor | None]]:
        """(place among all sampled tokens, their logprobs, their logits where the stock model made them)."""
        at, size = 0, 1 if self.side.layout == "single" else self.side.micro_batch
        for first in range(0, len(data.sequences), size):
            few = data.sequences[first : first + size]
            self.first = first
            logits_RV = None
            if self.patched is not None:
                lp_R = self.patched.score(
                    [s.prompt for s in few], [s.sampled for s in few], temperature=data.temperature
                )
            else:
                (batch,) = cut(few, self.side.layout, len(few))
                logits_RV = self.side.forward(batch)
                lp_R = self.side.logprob(logits_RV, batch.targets_R.to(self.side.device), Processing.of(data))
            yield slice(at, at + len(lp_R)), lp_R, logits_RV
            at += len(lp_R)

    def norm(self) -> float:
        """Norm of the gradient over all parameters."""
        parts = [float(p.grad.double().norm()) for p in self.parameters if p.grad is not None]
        return math.hypot(*parts)

    def flat_gradient(self) -> torch.Tensor:
        """The whole gradient as one float32 vector on CPU."""
        return torch.cat(
            [
                torch.zeros(p.numel()) if p.grad is None else p.grad.detach().float().flatten().cpu()
                for p in self.parameters
            ]
        )

    def update(self, name: str = "an update", rate: str = "rate") -> float:
        """One AdamW step, the gradient scaled down to the norm `clip` where it is longer; returns its own norm.

        Args:
            name: of this update, and `rate` the setting of [rl] that holds its learning rate: for the message.

        Raises:
            UserError: the gradient is not finite (nothing was updated), or the weights are not any more.
        """
        norm = self.norm()
        lower = (
            f"lower [rl] {rate} (here {self.optimizer.param_groups[0]['lr']:g}) and start again: a resumed run has the "
            "same settings, so it comes to the same weights"
        )
        if not math.isfinite(norm):
            raise UserError(f"the gradient of {name}", f"not finite (its norm is {norm})", lower)
        factor = min(1.0, self.clip / norm) if norm > 0 else 1.0
        for own, parameter in zip(self.master, self.parameters, strict=True):
            own.grad = None if parameter.grad is None else parameter.grad.float() * factor
        self.optimizer.step()
        self._publish()
        fine = torch.stack([parameter.detach().isfinite().all() for parameter in self.parameters])
        if not bool(fine.all()):
            raise UserError(
                "the weights",
                f"not finite after {name}: {int((~fine).sum())} of {len(fine)} hold NaN or infinity",
                lower,
            )
        return norm

    def _publish(self) -> None:
        with torch.no_grad():
            for own, parameter in zip(self.master, self.parameters, strict=True):
                own.grad = parameter.grad = None
                parameter.copy_(own)

    def push(self, llm: Any) -> list[str]:
        """All weights into the live engine, its cached prefixes forgotten."""
        if self.patched is not None:
            return list(self.patched.push(llm))
        from samebits.kernels.adapters.vllm.push import push

        return push(llm, self.side.module)

    def checkpoint(self) -> dict[str, torch.Tensor]:
        """All weights under checkpoint names, on a GPU the passes' own tensors."""
        return checkpoint_tensors(self.side.module, in_place=self.side.device.type == "cuda")

    def count(self) -> int:
        """Parameters that are trained."""
        return sum(parameter.numel() for parameter in self.parameters)

    def digest(self) -> str:
        """32 hex digits over all weights as the passes see them."""
        total = hashlib.sha256()
        for parameter in self.parameters:
            total.update(digest_rows(parameter.detach().reshape(len(parameter), -1)).cpu().numpy().tobytes())
        return total.hexdigest()[:32]

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"master": self.master, "optimizer": self.optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Back to a checkpoint, bit for bit."""
        with torch.no_grad():
            for own, stored in zip(self.master, state["master"], strict=True):
                own.copy_(stored)
        self.optimizer.load_state_dict(state["optimizer"])
        self._publish()


@contextmanager
def _deterministic(device: torch.device) -> Iterator[None]:
    """On CUDA: PyTorch's deterministic kernels where there are any, so that a resumed run has the same gradients. Not
    around the engine, whose empty buffers it would fill.
    """
    if device.type == "cpu":
        yield
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _centering(logits_RV: torch.Tensor, place: slice, temperature: float, centered: Centered) -> torch.Tensor:
    head, device = centered.head, logits_RV.device
    lp_RK = (logits_RV.float() / temperature).log_softmax(-1).gather(1, head.id_NK[place].to(device))
    constant_RK = centering.coefficients(
        head.logprob_NK[place].to(device), lp_RK.detach(), centering.truncated(centered.cap)
    )
    return (centered.scale_N[place].to(device)[:, None] * constant_RK * lp_RK).sum()
