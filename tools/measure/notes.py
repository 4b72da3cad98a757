"""What a person must know to read the figures: said in sentences beside them.

Legend: N sampled tokens in all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.tools.sides.scoring.logprob import GREEDY_BELOW, Processing

if TYPE_CHECKING:
    import torch

    from samebits.tools.sides.protocol import RolloutData


def notes(data: RolloutData, trainer_N: torch.Tensor) -> tuple[str, ...]:
    """Sentences about logprobs that are not finite and about greedy sampling; none when there is nothing to say."""
    return (*_greedy(data), *_not_finite(data, trainer_N))


def _greedy(data: RolloutData) -> tuple[str, ...]:
    if data.temperature >= GREEDY_BELOW or not bool(data.valid_N.any()):
        return ()
    return (
        f"Sampled at temperature {data.temperature:g}: greedy logprobs cannot be divided by it, so both sides are "
        f"taken raw, that is at temperature 1 without top-p and top-k.",
    )


def _not_finite(data: RolloutData, trainer_N: torch.Tensor) -> tuple[str, ...]:
    """Which side has them. A trainer's minus infinity under top-p or top-k is a token outside its kept set."""
    rollout_ok_N, trainer_ok_N = data.logprob_N.isfinite(), trainer_N.isfinite()
    own, total = Processing.of(data), int(data.valid_N.sum())
    cuts = own.top_k > 0 or own.top_p < 1
    cut_N = data.valid_N & rollout_ok_N & trainer_N.isneginf() if cuts else data.valid_N & False
    bad_trainer = int((data.valid_N & ~trainer_ok_N & ~cut_N).sum())
    bad_rollout = int((data.valid_N & ~rollout_ok_N).sum())
    out = []
    if bool(cut_N.any()):
        kept = " and ".join(
            [f"top-k {own.top_k}"] * (own.top_k > 0) + [f"top-p {own.top_p:g}"] * (own.top_p < 1),
        )
        out.append(
            f"{int(cut_N.sum())} of {total} sampled tokens are outside the trainer's kept set ({kept}): its logprob is "
            f"minus infinity, while the rollout side kept them. When the sampling on record is right and the weights "
            f"are equal, these are near-ties at the edge of the kept set: slightly different logits cut it at another "
            f"token. Raw logprobs are finite on both sides."
        )
    if bad_rollout or bad_trainer:
        sides = [f"{bad_rollout} on the rollout side"] * (bad_rollout > 0)
        sides += [f"{bad_trainer} on the trainer side"] * (bad_trainer > 0)
        out.append(f"NaN or infinite logprobs: {', '.join(sides)}, of {total} valid tokens.")
    return tuple(out)
