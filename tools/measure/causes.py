"""Causes of data or meaning that have a closed form: found by how little is left after it, never by resemblance.

Legend: N sampled tokens in all, M valid ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from samebits.tools.measure import endings, rounding
from samebits.tools.schema.artifacts.gap import NotNumerics
from samebits.tools.schema.passes import Reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from samebits.tools.sides.protocol import RolloutData

    Ask = Callable[[tuple[Reading, ...]], dict[str, torch.Tensor]]

LEFT = 0.1
"""A cause is named only when its closed form leaves at most this share of the root mean square and of the largest
diff.
"""
VISIBLE = 1e-4
"""Largest diff, nats, below which no cause of meaning is looked for: numerics alone are that large."""
FEWEST = 8
"""Tokens below which a fitted parameter proves nothing."""
TEMPERATURES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 1.75, 2.0)
TOP_P = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
MARGINS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
TOP_K = (1, 5, 10, 20, 40, 50, 64, 100)


@dataclass(slots=True)
class Gap:
    """What the causes are fitted to."""

    data: RolloutData
    trainer_N: torch.Tensor
    """float32."""
    ask: Ask
    processed: Reading
    """What the trainer's logprobs mean."""

    @property
    def used_N(self) -> torch.Tensor:
        """Valid and finite on both sides."""
        return self.data.valid_N & self.data.logprob_N.isfinite() & self.trainer_N.isfinite()

    def fit(self, cause: str, explanation: str, predicted_N: torch.Tensor) -> NotNumerics | None:
        """The cause, when `predicted_N` (what the rollout would report under it) leaves next to nothing."""
        used_N = self.used_N
        before_M = (self.data.logprob_N.double() - self.trainer_N.double())[used_N]
        known_M = predicted_N.isfinite()[used_N]
        after_M = (self.data.logprob_N.double() - predicted_N.double())[used_N][known_M]
        # A shift has no partner at sequence ends: those rows cannot speak for or against it.
        if len(after_M) < FEWEST or len(after_M) < 0.5 * len(before_M):
            return None
        before_M = before_M[known_M]
        if float(before_M.abs().max()) < VISIBLE:
            return None
        if float(after_M.square().mean().sqrt()) > LEFT * float(before_M.square().mean().sqrt()):
            return None
        if float(after_M.abs().max()) > LEFT * float(before_M.abs().max()):
            return None
        return NotNumerics(
            cause=cause,
            explanation=explanation,
            residual=float(after_M.abs().max()),
            before=float(before_M.abs().max()),
        )


def find_causes(gap: Gap) -> tuple[NotNumerics, ...]:
    """Every cause whose closed form fits, best first (those that explain, smallest residual, the simpler reading)."""
    found = [endings.find(gap), rounding.find(gap)]
    if int(gap.used_N.sum()) >= FEWEST:
        found += [*_meanings(gap), _divided(gap), _shifted(gap)]
    causes = [cause for cause in found if cause is not None]
    return tuple(_once(sorted(causes, key=lambda c: (not explains(c), c.residual))))


def explains(cause: NotNumerics) -> bool:
    """Whether next to nothing is left after the cause; rounding may be certain and yet explain little."""
    return cause.residual <= LEFT * cause.before


def _once(causes: list[NotNumerics]) -> list[NotNumerics]:
    first: dict[str, NotNumerics] = {}
    for cause in causes:
        first.setdefault(cause.cause, cause)
    return list(first.values())


def _meanings(gap: Gap) -> list[NotNumerics | None]:
    """Readings that need the trainer's logits: temperature, top-p, top-k, raw or processed, padded vocabulary, row
    shift.
    """
    data, own = gap.data, gap.processed
    recorded = Reading(temperature=data.temperature or 1.0, top_p=data.top_p, top_k=data.top_k)
    plain = Reading(count=True)
    scaled = Reading(temperature=recorded.temperature, count=True)
    shifts = tuple(own.model_copy(update={"row_shift": shift}) for shift in (-1, 1))
    grid = tuple(Reading(temperature=t) for t in TEMPERATURES)
    asked = (own, recorded, plain, scaled, *shifts, *grid)
    columns = gap.ask(asked)
    out: list[NotNumerics | None] = []

    def column(name: str, k: int) -> torch.Tensor:
        return columns[f"{name}.{k}"]

    if recorded != own:
        out.append(
            gap.fit(
                "raw_processed",
                f"the rollout reports processed logprobs ({_words(recorded)}), the trainer's are raw",
                column("logprob", 1),
            )
        )
    if own != Reading():
        out.append(
            gap.fit(
                "raw_processed",
                f"the rollout reports raw logprobs, the trainer's are processed ({_words(own)})",
                column("logprob", 2),
            )
        )
    for k, shift in ((4, -1), (5, 1)):
        late = "late" if shift > 0 else "early"
        out.append(
            gap.fit(
                "shift", f"the rollout's logprobs are taken from the logits one row too {late}", column("logprob", k)
            )
        )
    out.append(_padded(gap, column("logprob", 0), column("total", 0)))
    best = min(range(len(grid)), key=lambda g: _spread(gap, column("logprob", 6 + g)))
    if not any(c is not None and c.cause == "raw_processed" for c in out):
        out.append(_temperature(gap, TEMPERATURES[best]))
    # The kept set may have been cut at the recorded temperature or at 1.
    for k, base in ((3, scaled), (2, plain)):
        out += _support(gap, base.temperature, column("logprob", k), column("count", k))
        if base.temperature == 1.0:
            break
    return out


def _words(reading: Reading) -> str:
    parts = [f"temperature {reading.temperature:g}"]
    parts += [f"top-p {reading.top_p:g}"] if reading.top_p < 1 else []
    parts += [f"top-k {reading.top_k}"] if reading.top_k else []
    return ", ".join(parts)


def _spread(gap: Gap, predicted_N: torch.Tensor) -> float:
    left_M = (gap.data.logprob_N.double() - predicted_N)[gap.used_N]
    left_M = left_M[left_M.isfinite()]
    return float(left_M.square().mean()) if len(left_M) else float("inf")


def _temperature(gap: Gap, start: float) -> NotNumerics | None:
    """Gauss-Newton on 1/T from the best of the grid, then the round value beside it when that fits as well."""
    inverse = 1 / start
    for _ in range(5):
        columns = gap.ask((Reading(temperature=1 / inverse),))
        left_M = (gap.data.logprob_N.double() - columns["logprob.0"])[gap.used_N]
        slope_M = columns["slope.0"][gap.used_N]
        step = float((left_M * slope_M).sum() / slope_M.square().sum().clamp(min=1e-30))
        inverse = min(max(inverse + step, inverse / 2, 0.02), inverse * 2, 50.0)
        if abs(step) < 1e-9 * inverse:
            break
    fitted = 1 / inverse
    rounded = round(fitted, 3)
    columns = gap.ask((Reading(temperature=fitted), Reading(temperature=max(rounded, 0.001))))
    # Float32 logprobs pin T to a few 1e-7: a round value that close is what somebody typed.
    k, value = (1, rounded) if abs(fitted - rounded) < 2e-4 else (0, fitted)
    return gap.fit(
        "temperature",
        f"the rollout's logprobs are at temperature {value:.6g}, the trainer's at {gap.processed.temperature:g}",
        columns[f"logprob.{k}"],
    )


def _divided(gap: Gap) -> NotNumerics | None:
    """A logprob that was multiplied, not the logits: log_softmax(logits) / T."""
    used_N = gap.used_N
    rollout_M, trainer_M = gap.data.logprob_N.double()[used_N], gap.trainer_N.double()[used_N]
    ratio = float((rollout_M * trainer_M).sum() / trainer_M.square().sum().clamp(min=1e-30))
    if ratio <= 0:
        return None
    return gap.fit(
        "temperature",
        f"the rollout's logprobs are the trainer's divided by {1 / ratio:.6g} (the logprob was divided, not the "
        f"logits)",
        gap.trainer_N.double() * ratio,
    )


def _shifted(gap: Gap) -> NotNumerics | None:
    """The column itself is one token early or late inside each sequence."""
    found: list[NotNumerics | None] = []
    for lag in (-1, 1):
        predicted_N = torch.full_like(gap.trainer_N, torch.nan)
        start = 0
        for sequence in gap.data.sequences:
            count = len(sequence.sampled)
            first, last = max(0, -lag), min(count, count - lag)
            if last > first:
                predicted_N[start + first : start + last] = gap.trainer_N[start + first + lag : start + last + lag]
            start += count
        which = "next" if lag > 0 else "previous"
        found.append(
            gap.fit(
                "shift", f"the rollout reports at each token the logprob of the {which} one (lag {lag:+d})", predicted_N
            )
        )
    fitting = [cause for cause in found if cause is not None]
    return min(fitting, key=lambda c: c.residual) if fitting else None


def _padded(gap: Gap, logprob_N: torch.Tensor, total_N: torch.Tensor) -> NotNumerics | None:
    """Lanes beyond the vocabulary, with logit 0, counted in the sum: diff = -log1p(P exp(-LSE)) (case 87)."""
    used_N = gap.used_N
    diff_N = gap.data.logprob_N.double() - logprob_N
    lanes_M = (torch.expm1(-diff_N) * total_N.exp())[used_N]
    if not len(lanes_M) or not bool(lanes_M.isfinite().all()):
        return None
    lanes = round(float(lanes_M.median()))
    if lanes == 0:
        return None
    where = "rollout" if lanes > 0 else "trainer"
    return gap.fit(
        "padded_vocabulary",
        f"the {where} side counts {abs(lanes)} lanes of logit 0 beyond the vocabulary in its sum",
        logprob_N - torch.log1p((lanes * (-total_N).exp()).clamp(min=-1 + 1e-12)),
    )


def _support(gap: Gap, temperature: float, uncut_N: torch.Tensor, count_N: torch.Tensor) -> list[NotNumerics | None]:
    """Renormalised over kept tokens: diff = -log(kept mass), one sign (case 92).

    The kept mass of every token bounds p from above, and any p between the true one and the smallest mass keeps the
    same sets: so the smallest mass is tried, a little less for its own numerics. A constant number of kept tokens is a
    top-k.
    """
    used_N = gap.used_N & uncut_N.isfinite()
    mass_M = (uncut_N - gap.data.logprob_N.double())[used_N].exp()
    if not len(mass_M) or float(mass_M.min()) <= 0:
        return [None]
    top_k = int(count_N[used_N].median())
    smallest = {float(mass_M.min()) * (1 - margin) for margin in MARGINS}
    readings = [
        Reading(temperature=temperature, top_k=k) for k in sorted({top_k, *TOP_K, gap.data.top_k or top_k}) if k > 0
    ]
    readings += [
        Reading(temperature=temperature, top_p=p) for p in sorted({*TOP_P, gap.data.top_p, *smallest}) if 0 < p < 1
    ]
    columns = gap.ask(tuple(readings))
    best = min(range(len(readings)), key=lambda k: _spread_known(gap, columns[f"logprob.{k}"]))
    # A set that is nearly the whole vocabulary cuts nothing: what fits then is the temperature.
    if _spread(gap, columns[f"logprob.{best}"]) > LEFT**2 * _spread(gap, uncut_N):
        return [None]
    reading = readings[best]
    cause = "top_k" if reading.top_k else "top_p"
    how = (
        f"{reading.top_k} tokens"
        if reading.top_k
        else f"top-p {reading.top_p:.4g}" + (" (any p with these kept sets)" if reading.top_p not in TOP_P else "")
    )
    return [
        gap.fit(
            cause,
            f"the rollout's logprobs are renormalised over the kept {how} at temperature {temperature:g}, the "
            f"trainer's are not",
            columns[f"logprob.{best}"],
        )
    ]


def _spread_known(gap: Gap, predicted_N: torch.Tensor) -> float:
    """Like _spread, infinite when a sampled token was cut: it could not have been sampled."""
    return float("inf") if bool(predicted_N[gap.used_N].isneginf().any()) else _spread(gap, predicted_N)
