"""From logits to the logprob of the sampled token, as the rollout's engine defines it.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from samebits.tools.sides.protocol import RolloutData

    Operator = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy for vLLM: logits are neither scaled nor cut."""


@dataclass(slots=True, frozen=True)
class Processing:
    """What the sampler did to the logits before it took the logprob."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    @classmethod
    def of(cls, data: RolloutData) -> Processing:
        """Of a rollout: nothing when its logprobs are raw or its sampling was greedy."""
        if data.logprobs == "raw" or data.temperature < GREEDY_BELOW:
            return cls()
        return cls(data.temperature, data.top_p, data.top_k)


def keep_top(logits_RV: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Logits with everything outside top-k, then top-p, at minus infinity.

    The order of operations is that of vLLM's PyTorch sampler, so that the kept sets agree to the last token: ascending
    sort, ties with the k-th logit kept, cumulative sum of the softmax from below, kept where it exceeds 1 - top_p.
    """
    if top_k <= 0 and top_p >= 1:
        return logits_RV
    ascending_RV, index_RV = logits_RV.sort(dim=-1, descending=False)
    vocabulary = logits_RV.shape[-1]
    if 0 < top_k < vocabulary:
        ascending_RV = ascending_RV.masked_fill(ascending_RV < ascending_RV[:, vocabulary - top_k, None], -torch.inf)
    if top_p < 1:
        below_RV = torch.cumsum(ascending_RV.softmax(dim=-1), dim=-1)
        # 1 - p is taken in float32, where the engine holds p.
        drop_RV = below_RV <= 1 - torch.tensor([top_p], dtype=torch.float32, device=logits_RV.device)
        drop_RV[:, -1] = False
        ascending_RV = ascending_RV.masked_fill(drop_RV, -torch.inf)
    return logits_RV.scatter(-1, index_RV, ascending_RV)


class Logprob(torch.nn.Module):
    """The side's own last step, a module so that it can be tapped like any other (site module "logprob")."""

    def __init__(self, formula: Literal["logsumexp", "log_softmax"]) -> None:
        super().__init__()
        self.formula = formula
        self.operator: Operator | None = None
        """A patch engine's own operator (logits, tokens, temperature), used in place of the formula."""

    def forward(self, logits_RV: torch.Tensor, targets_R: torch.Tensor, processing: Processing) -> torch.Tensor:
        """Logprob of each row's target.

        Args:
            logits_RV: any floating dtype.
            targets_R: int64.

        Returns:
            float32 [R], nats; minus infinity where the target was cut by top-k or top-p.
        """
        if self.operator is not None and processing.top_k <= 0 and processing.top_p >= 1:
            return self.operator(logits_RV, targets_R, processing.temperature)
        if processing.temperature != 1:
            # A tensor, not a scalar: CUDA divides by a scalar as a product with its reciprocal.
            scale_R1 = torch.full(
                (len(logits_RV), 1), processing.temperature, dtype=torch.float32, device=logits_RV.device
            )
            logits_RV = logits_RV.float() / scale_R1
        if processing.top_k > 0 or processing.top_p < 1:
            logits_RV = keep_top(logits_RV.float(), processing.top_k, processing.top_p)
        if self.operator is not None:
            return self.operator(logits_RV, targets_R, 1.0)
        if self.formula == "log_softmax":
            logprob_RV = logits_RV.log_softmax(dim=-1, dtype=torch.float32)
            return logprob_RV.gather(1, targets_R[:, None])[:, 0]
        logits_RV = logits_RV.float()
        return logits_RV.gather(1, targets_R[:, None])[:, 0] - torch.logsumexp(logits_RV, dim=-1)
