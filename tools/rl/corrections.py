"""What is done about p != q: importance weights and masks of one batch. With p == q to the bit each is the identity.

p is the trainer's probability of the sampled token at the weights of the update, q the one the rollout reported,
l = log p - log q, r = exp(l). Nothing here is differentiated: weights are constants of the loss.

Sources of the formulas (names and defaults as in the public code of 2026):
    is         r, unclipped
    tis        min(r, cap): truncated importance sampling, Yao et al. 2025; verl `rollout_corr_helper.py`, token level
    mis        tokens with r outside `band` are masked and leave the denominator, the others keep r; miles `mis.py`
    icepop     weight 0 outside `band`, the denominator stays; Ling team 2025; verl "lo_hi", TRL token mask
    geometric  sequences with exp(mean l) outside are masked, the others keep r per token; verl `seq_mean_k1`
    flash      FlashREINFORCE (yifanzhang-pro/FlashREINFORCE, 2026): see `binary_kl`, `flash_advantages`
    centering  tis plus the terms of centering.py

Legend: S sequences, N sampled tokens in all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import torch

from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Correction

if TYPE_CHECKING:
    from samebits.tools.schema.experiment import Rl

NAMES: tuple[Correction, ...] = get_args(Correction)
CLAMP = 20.0
"""Log ratios are cut to +-CLAMP before exp, so that no weight overflows (verl)."""
PROBABILITY_FLOOR = 1e-6
"""FlashREINFORCE clamps both probabilities to [floor, 1 - floor]."""


@dataclass(slots=True, frozen=True)
class Weights:
    """Of one batch."""

    weight_N: torch.Tensor
    """float32; 0 where a token is dropped or not valid."""
    scale_N: torch.Tensor
    """float32: what the loss divides by, as a factor; 0 where a token does not count."""
    ratio_N: torch.Tensor
    """float32, before any truncation; 1 where a token is not valid."""
    kept: float
    """Share of the valid tokens with a weight."""
    truncated: int
    """Tokens whose weight is not their ratio (dropped ones not counted)."""

    @property
    def mean(self) -> float:
        """Mean weight over the tokens that have one (1 in an exact system)."""
        used_N = self.weight_N[self.weight_N > 0].double()
        return float(used_N.mean()) if len(used_N) else 0.0

    @property
    def effective(self) -> float:
        """Effective sample size as a share: (sum w)^2 / (n sum w^2) over valid tokens."""
        w_N = self.weight_N[self.scale_N > 0].double()
        return float(w_N.sum() ** 2 / (len(w_N) * (w_N**2).sum())) if len(w_N) and bool(w_N.any()) else 0.0


def weigh(
    name: Correction,
    trainer_N: torch.Tensor,
    rollout_N: torch.Tensor,
    valid_N: torch.Tensor,
    lengths: list[int],
    settings: Rl,
) -> Weights:
    """Weights of one batch.

    Args:
        trainer_N, rollout_N: float32, nats, on CPU; what stands under an invalid token does not matter.
        lengths: sampled tokens of each sequence.

    Raises:
        UserError: no valid token, or a valid token whose logprob is not finite on either side.
    """
    _check(trainer_N, rollout_N, valid_N)
    log_ratio_N = torch.where(valid_N, trainer_N - rollout_N, 0.0)
    ratio_N = log_ratio_N.clamp(-CLAMP, CLAMP).exp()
    row_N = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    keep_N, weight_N = valid_N, ratio_N
    counted_N = valid_N
    if name == "none":
        weight_N = torch.ones_like(ratio_N)
    elif name in ("tis", "centering"):
        weight_N = ratio_N.clamp(max=settings.cap)
    elif name in ("mis", "icepop"):
        keep_N = valid_N & _inside(ratio_N, settings.band)
        counted_N = keep_N if name == "mis" else valid_N
    elif name == "geometric":
        mean_S = _row_mean(log_ratio_N, valid_N, row_N, len(lengths))
        keep_N = valid_N & _inside(mean_S.exp(), settings.geometric_band)[row_N]
        counted_N = keep_N
    elif name == "flash":
        gate_N = torch.where(valid_N, binary_kl(rollout_N, trainer_N), 0.0)
        keep_N = valid_N & (_row_mean(gate_N, valid_N, row_N, len(lengths)) <= settings.delta)[row_N]
    weight_N = torch.where(keep_N, weight_N, 0.0)
    scale_N = _per_row(valid_N, row_N, len(lengths)) if name == "flash" else _per_token(counted_N)
    return Weights(
        weight_N,
        scale_N,
        ratio_N,
        kept=float(keep_N.sum() / valid_N.sum()),
        truncated=int((keep_N & (weight_N != ratio_N)).sum()) if name != "none" else 0,
    )


def _check(trainer_N: torch.Tensor, rollout_N: torch.Tensor, valid_N: torch.Tensor) -> None:
    if not bool(valid_N.any()):
        raise UserError("the batch", "no valid token: there is nothing to learn from", "check its mask")
    for side, lp_N in (("rollout", rollout_N), ("trainer", trainer_N)):
        bad = int((valid_N & ~lp_N.isfinite()).sum())
        if bad:
            raise UserError(
                f"{bad} valid tokens",
                f"the {side} side's logprob is NaN or infinite",
                "find out what made it, or mask them; no update was done",
            )


def _inside(ratio: torch.Tensor, band: tuple[float, float]) -> torch.Tensor:
    return (ratio >= band[0]) & (ratio <= band[1])


def _row_mean(values_N: torch.Tensor, valid_N: torch.Tensor, row_N: torch.Tensor, rows: int) -> torch.Tensor:
    """Mean over each sequence's own valid tokens; 0 where it has none."""
    total_S = torch.zeros(rows).index_add_(0, row_N, torch.where(valid_N, values_N, 0.0))
    return total_S / _row_count(valid_N, row_N, rows).clamp(min=1)


def _row_count(valid_N: torch.Tensor, row_N: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.zeros(rows).index_add_(0, row_N, valid_N.float())


def _per_token(counted_N: torch.Tensor) -> torch.Tensor:
    """1 / number of counted tokens."""
    return counted_N.float() / counted_N.sum().clamp(min=1)


def _per_row(valid_N: torch.Tensor, row_N: torch.Tensor, rows: int) -> torch.Tensor:
    """1 / (B T_i), both counts as they were before any row was dropped."""
    count_S = _row_count(valid_N, row_N, rows)
    return torch.where(valid_N, 1.0 / (rows * count_S.clamp(min=1))[row_N], 0.0)


def binary_kl(rollout_N: torch.Tensor, trainer_N: torch.Tensor) -> torch.Tensor:
    """KL of "this token or not", q against p: q log(q/p) + (1-q) log((1-q)/(1-p)), probabilities clamped. float32."""
    q_N, p_N = (lp_N.double().exp().clamp(PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR) for lp_N in (rollout_N, trainer_N))
    return (q_N * (q_N / p_N).log() + (1 - q_N) * ((1 - q_N) / (1 - p_N)).log()).float()


def group_advantages(reward_S: torch.Tensor, group: int, *, scale_by_std: bool) -> torch.Tensor:
    """Reward minus the mean of its group of answers to one prompt; GRPO divides by the standard deviation too."""
    reward_PG = reward_S.view(-1, group)
    advantage_PG = reward_PG - reward_PG.mean(1, keepdim=True)
    if scale_by_std:
        advantage_PG = advantage_PG / (reward_PG.std(1, keepdim=True) + 1e-6)
    return advantage_PG.flatten()


def flash_advantages(reward_S: torch.Tensor) -> torch.Tensor:
    """FlashREINFORCE: reward minus the mean of the whole batch; no standard deviation."""
    return reward_S - reward_S.mean()


def advantages(name: Correction, reward_S: torch.Tensor, settings: Rl) -> torch.Tensor:
    """The advantage of every answer that goes with this correction."""
    if name == "flash":
        return flash_advantages(reward_S)
    return group_advantages(reward_S, settings.group, scale_by_std=settings.scale_by_std)
