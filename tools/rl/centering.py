"""Score Centering (arXiv 2609.20807): takes out the baseline term that p != q leaves in the gradient.

With weights f(r) the expectation over q of f(r) grad log p is not zero, so a constant advantage would move the policy.
It is subtracted, exactly on the head H of the K most probable tokens of the sampler and modelled on the tail:

    L_t = -A * ( f(r_y) log p_y - sum_{v in H} (q_v f(r_v) - alpha p_v) log p_v )
    alpha = rho f(1 / rho),  rho = (1 - sum_H q) / (1 - sum_H p)

f, q, p in the coefficients and alpha are constants; log p on H is differentiated. Here f(r) = min(r, cap), as in tis.

Legend: N sampled tokens, K tokens of the head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from samebits.tools.rl.corrections import CLAMP

if TYPE_CHECKING:
    from collections.abc import Callable

    Weight = Callable[[torch.Tensor], torch.Tensor]

TAIL_FLOOR = 1e-6
"""Smallest tail probability, as in NeMo-RL and miles."""


def truncated(cap: float) -> Weight:
    """f(r) = min(r, cap)."""
    return lambda ratio: ratio.clamp(max=cap)


def coefficients(rollout_NK: torch.Tensor, trainer_NK: torch.Tensor, weight: Weight) -> torch.Tensor:
    """q_v f(r_v) - alpha p_v for every head token.

    Args:
        rollout_NK, trainer_NK: logprobs of the head under q and p, of full-vocabulary softmaxes.

    Returns:
        [N, K] in the inputs' dtype; exactly 0 where both sides have the same bits, provided f(1) = 1.
    """
    q_NK, p_NK = rollout_NK.exp(), trainer_NK.exp()
    ratio_NK = (trainer_NK - rollout_NK).clamp(-CLAMP, CLAMP).exp()
    tail_q_N1, tail_p_N1 = (1 - x_NK.sum(-1, keepdim=True) for x_NK in (q_NK, p_NK))
    # Both floored: where the head is the whole vocabulary there is no tail and alpha is 1.
    rho_N1 = tail_q_N1.clamp(min=TAIL_FLOOR) / tail_p_N1.clamp(min=TAIL_FLOOR)
    alpha_N1 = rho_N1 * weight(1 / rho_N1)
    return q_NK * weight(ratio_NK) - alpha_N1 * p_NK
