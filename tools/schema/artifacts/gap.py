"""GapReport: how far the two sides are apart, and what was ruled out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from samebits.tools.schema.artifacts.base import Manifest
from samebits.tools.schema.base import Model


class GapStats(Model):
    """Over valid tokens. diff = rollout logprob - trainer logprob, nats; sums in float64."""

    tokens: int
    nonzero: int
    """Tokens whose float32 bit patterns differ."""
    nonfinite: int
    """Valid tokens with a logprob that is not finite on either side; any makes the comparison fail."""
    max: float
    """Largest |diff|; like mean, std and k3 over the finite tokens, NaN when there is none."""
    mean: float
    """Mean of diff."""
    std: float
    """Population standard deviation of diff."""
    k3: float
    """Mean of expm1(r) - r with r = trainer - rollout (Schulman's k3 estimator)."""

    @property
    def exact(self) -> bool:
        """At least one valid token, all finite, all bits equal."""
        return self.tokens > 0 and self.nonzero == 0 and self.nonfinite == 0


class SequenceGap(Model):
    sequence: int
    prompt_tokens: int
    tokens: int
    nonzero: int
    max: float
    """NaN: no finite token."""
    first_position: int | None
    """Absolute position of the first differing sampled token; None: all equal."""


class WorstToken(Model):
    sequence: int
    position: int
    token: int
    rollout: float
    trainer: float
    ulps: int
    """Distance of the two float32 values in units in the last place; -1: one of them is not finite."""
    around: tuple[float, ...]
    """diff at the positions -2..+2 around it; NaN beyond the ends or where masked."""


class NotNumerics(Model):
    """A cause of data or meaning whose closed form explains the difference."""

    cause: str
    """temperature, top_p, top_k, shift, end_token, padded_vocabulary, raw_processed, transport_rounding, weights,
    tokens."""
    explanation: str
    residual: float
    """Largest |diff| left after the closed form is applied, nats."""
    before: float
    """Largest |diff| before."""


class Same(Model):
    status: Literal["same"] = "same"


class Varies(Model):
    status: Literal["varies"] = "varies"
    stats: GapStats
    trigger: str
    """What was switched: the difference followed it."""


class NotRun(Model):
    status: Literal["not_run"] = "not_run"
    reason: str


class Axis(Model):
    """One side against itself."""

    side: Literal["rollout", "trainer"]
    name: Literal["repeat", "batch", "decode_prefill", "chunked_prefill", "prefix_hit", "eager_compiled", "micro_batch"]
    tokens: int
    outcome: Annotated[Same | Varies | NotRun, Field(discriminator="status")]
    changed: str
    """The two ways that were compared, in words."""


class GapReport(Manifest):
    """gap.safetensors holds rollout and trainer logprob float32 [N] and valid bool [N] in the rollout's order."""

    schema_version: int = 2
    kind: Literal["gap"] = "gap"
    stats: GapStats
    sequences: tuple[SequenceGap, ...]
    worst: tuple[WorstToken, ...]
    not_numerics: tuple[NotNumerics, ...]
    """Causes of data or meaning that fit, best first."""
    weights: Literal["equal", "differ", "unchecked"]
    weights_text: str
    """"equal (n tensors)", "differ: names", or "not checked: why"."""
    axes: tuple[Axis, ...]
    sound: bool
    """Step 1 held on both sides; else whatever else is here was not judged."""
    unsteady: tuple[Literal["rollout", "trainer"], ...] = ()
    """Sides that gave other logprobs when they were asked again in the same way."""
    could_fail: str
    """Evidence of step 1: what a one-ulp change to one tap did to the logprobs, and whether capture moves a bit."""
    notes: tuple[str, ...] = ()
    """What else the figures need to be read: where logprobs are not finite, greedy sampling."""
    two_dtypes: str = ""
    """The dtypes of both sides, where they have none in common."""
    sides: dict[str, tuple[str, ...]]
    """What really ran, by role: versions, runner, attention backend, eager or compiled, kernels replaced."""
