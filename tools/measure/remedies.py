"""What to change for each cause of data or meaning, in words; keys are named only where they exist."""

from __future__ import annotations

REMEDIES = {
    "temperature": "make the temperature that the rollout's logprobs are at the one on record (`temperature` of the "
    "rows, or [workload] temperature)",
    "top_p": "record the top-p that the rollout's logprobs are renormalised over (`top_p` of the rows, or [workload] "
    "top_p), or report raw logprobs",
    "top_k": "record the top-k that the rollout's logprobs are renormalised over (`top_k` of the rows, or [workload] "
    "top_k), or report raw logprobs",
    "raw_processed": "name what the rollout's logprobs are, raw or processed (`logprobs_mode` of the rows, or "
    "[rollout] logprobs)",
    "shift": "line up the rollout's logprobs with its sampled tokens (they are one place off)",
    "end_token": "mask the tokens at the end of the sequences that the engine reports no logprob for, or report it",
    "padded_vocabulary": "cut the logits to the real vocabulary before the sum on the side that is named",
    "transport_rounding": "hand on the rollout's logprobs as whole float32 values (no bfloat16 or float16 tensor, no "
    "short decimal text on the way)",
}


def remedy(cause: str) -> str:
    """The change that puts a cause right."""
    return REMEDIES[cause]
