"""Rollout: sampled tokens with the logprobs the rollout side reported."""

from __future__ import annotations

from typing import Literal

from samebits.tools.schema.artifacts.base import Manifest
from samebits.tools.schema.base import Model


class Origin(Model):
    """The rollout side of the experiment that sampled a rollout."""

    side: str
    """As in [rollout] side."""
    model: str
    """Absolute path of the model folder."""
    digest: str
    """Over config.json and a sample of its weight files; "": not a model folder."""


class RolloutManifest(Manifest):
    """rollout.safetensors holds, for S sequences, P prompt tokens and N sampled tokens in all:

    prompt_ids int32 [P], prompt_offsets int64 [S+1], sampled_ids int32 [N], sampled_offsets int64 [S+1],
    logprob float32 [N] (nats, as reported), valid bool [N] (False: masked, not counted); of rows of a file also
    lines int64 [S]: the line or row that holds each sequence.
    """

    kind: Literal["rollout"] = "rollout"
    sequences: int
    tokens: int
    """Sampled tokens in all, masked ones included."""
    temperature: float
    top_p: float
    top_k: int
    logprobs: Literal["raw", "processed", "unknown"]
    weight_version: int = 0
    side: str
    """What generated it: "vllm 0.32.0", "transformers", or the file it was read from."""
    source: str = ""
    """Of rows of a file: its path, with the word "line" or "row"."""
    origin: Origin | None = None
    """None: not sampled by a side of an experiment (rows of a file, a training loop)."""
    notes: tuple[str, ...] = ()
