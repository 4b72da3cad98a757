"""False alarms: data, meaning, state, the probe, the check itself. Legend: N sampled tokens, V vocabulary."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from case_form import EQUAL, Case, named, random, word
from case_probe import alone, switched

from samebits.tools.align.taps import Taps
from samebits.tools.capture.recorder import Recorder
from samebits.tools.capture.rows import PassRows
from samebits.tools.diff.bits import compare, equal, next_ulp
from samebits.tools.measure.causes import Gap, find_causes
from samebits.tools.measure.gap import stats
from samebits.tools.schema.passes import Reading
from samebits.tools.schema.sites import CapturePlan
from samebits.tools.sides.protocol import RolloutData, Sequence
from samebits.tools.sides.scoring.readings import columns

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT, VOCABULARY = 64, 200


def sampled(
    report: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], temperature: float = 1.0
) -> tuple[Gap, torch.Tensor]:
    """A rollout of one sequence that reports `report(logits, tokens)`; the trainer is at temperature 1."""
    logits_NV = 2 * random(71)(COUNT, VOCABULARY).float()
    p_NV = (logits_NV / temperature).softmax(-1)
    token_N = torch.multinomial(keep(p_NV), 1, generator=torch.Generator().manual_seed(71))[:, 0]
    sequence = Sequence(prompt=[1], sampled=token_N.tolist())
    data = RolloutData([sequence], report(logits_NV, token_N).float(), torch.ones(COUNT, dtype=torch.bool))

    def ask(readings: tuple[Reading, ...]) -> dict[str, torch.Tensor]:
        out: dict[str, torch.Tensor] = {}
        for k, reading in enumerate(readings):
            shifted = logits_NV.roll(-reading.row_shift, 0)
            found = columns(shifted, token_N, reading, data.logprob_N)
            missing = torch.arange(COUNT) + reading.row_shift
            lost = (missing < 0) | (missing >= COUNT)
            out |= {f"{name}.{k}": value.masked_fill(lost, torch.nan) for name, value in found.items()}
        return out

    trainer_N = logits_NV.log_softmax(-1).gather(1, token_N[:, None])[:, 0]
    return Gap(data, trainer_N, ask, Reading()), logits_NV


def keep(p_NV: torch.Tensor) -> torch.Tensor:
    """Top-p 0.9: what a sampler keeps."""
    ranked, order = p_NV.sort(-1, descending=True)
    ranked = ranked.masked_fill(ranked.cumsum(-1) - ranked > 0.9, 0.0)
    return torch.zeros_like(p_NV).scatter(-1, order, ranked)


def picked(logp_NV: torch.Tensor, token_N: torch.Tensor) -> torch.Tensor:
    return logp_NV.gather(1, token_N[:, None])[:, 0]


def meaning(report: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], temperature: float = 1.0) -> str:
    causes = find_causes(sampled(report, temperature)[0])
    return causes[0].cause if causes else "none"


def numerics() -> str:
    """One ulp here and there has no closed form."""
    return meaning(lambda z, t: next_ulp(picked(z.log_softmax(-1), t)))


def shifted_column() -> str:
    return meaning(lambda z, t: picked(z.log_softmax(-1), t).roll(-1))


def top_p() -> str:
    return meaning(lambda z, t: picked(keep(z.softmax(-1)).log() - keep(z.softmax(-1)).sum(-1, keepdim=True).log(), t))


def warm() -> str:
    return meaning(lambda z, t: picked((z / 0.7).log_softmax(-1), t), temperature=0.7)


def padded() -> str:
    return meaning(lambda z, t: picked(torch.nn.functional.pad(z, (0, 56)).log_softmax(-1), t))


def stale(reset: bool) -> str:
    """Keys and values built with the old weights, queries with the new ones."""
    r = random(72)
    x, old, new = r(32, 64), r(64, 64), r(64, 64)
    cold = x @ new
    warm_cache = cold if reset else x @ old
    cause = switched("state", "warm prefix cache", (warm_cache, cold), (cold, x @ new))
    return EQUAL if "no difference" in cause.why else word(cause)


def dropout(training: bool) -> str:
    torch.manual_seed(73)
    layer = torch.nn.Dropout(0.1).train(training)
    x = random(73)(16, 64)
    return word(alone(layer, x))


def layout(moved: bool) -> str:
    """Two libraries cut the sequence in another order (zig-zag against contiguous)."""
    rows = random(74)(16, 32)
    order = [i for pair in zip(range(8), range(15, 7, -1), strict=True) for i in pair]
    return named("collective", {}, rows[order] if moved else rows, rows)


def late_row(moved: bool) -> str:
    rows = random(75)(16, 32)
    return named("logprob", {}, rows.roll(1, 0) if moved else rows, rows)


def merged_order(moved: bool) -> str:
    """Merged query, key, value weights in another order."""
    rows = random(76)(16, 96)
    return named("linear", {}, torch.cat([rows[:, 64:], rows[:, :64]], 1) if moved else rows, rows)


def constant(factor: float) -> str:
    """One scale constant is off: a float32 tap shows one ratio."""
    rows = random(77)(64, 64)
    return named("unknown", {}, rows * factor, rows)


class Overwritten(torch.nn.Module):
    """Adds into what its first part gave, as a fused norm does."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Identity()

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.first(x * 2)
        return out.add_(residual)


class Rows:
    """Row map of one sequence."""

    def current(self) -> PassRows:
        return PassRows(torch.zeros(8, dtype=torch.int32), torch.arange(8, dtype=torch.int32), None, None)


def aliased(cloned: bool) -> str:
    """A captured reference is overwritten by the next fused operator; the recorder's copy is not."""
    model, kept = Overwritten(), []
    model.first.register_forward_hook(lambda _module, _args, out: kept.append(out.clone() if cloned else out))
    plan = CapturePlan(store="tensors")
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        with Recorder(model, Rows(), plan) as recorder:
            model(random(78)(8, 16), random(79)(8, 16))
        recorder.write(Path(folder) / "capture")
        recorded = Taps.open(Path(folder) / "capture").value("first:out0")
    return EQUAL if equal(kept[0], recorded) else "capture"


def zeros(sign: float) -> str:
    """Equal as values is not equal: -0.0, NaN payloads."""
    a = torch.tensor([[0.0, 1.0]])
    found = compare(a, torch.tensor([[sign * 0.0, 1.0]]))
    assert torch.equal(a, torch.tensor([[sign * 0.0, 1.0]]))
    return "value_equal_only" if found.value_equal_only == found.elements_differing == 1 else EQUAL


def payload(other: bool) -> str:
    bits = torch.tensor([[0x7FC00000, 0x7FC00001 if other else 0x7FC00000]], dtype=torch.int32)
    found = compare(bits[:, :1].view(torch.float32), bits[:, 1:].contiguous().view(torch.float32))
    return "value_equal_only" if found.value_equal_only == 1 else EQUAL


def masked(valid: bool) -> str:
    """An empty mask: the maximum is 0 and proves nothing."""
    logprob = random(80)(16)
    return "exact" if stats(logprob, logprob, torch.full((16,), valid)).exact else "not exact"


def unseen(planted: bool) -> str:
    """One ulp in one element must be seen."""
    tap = random(81)(8, 32)
    other = tap.clone()
    if planted:
        other[3, 5] = next_ulp(tap)[3, 5]
    return "differs" if compare(tap, other).elements_differing == 1 else EQUAL


def noise(pattern: bool) -> str:
    """Differences that no arithmetic gives must stay unknown: one ulp on random elements of a norm."""
    r = random(82)
    x, w = r(64, 256), r(256)
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w
    hit = torch.rand(y.shape, generator=torch.Generator().manual_seed(82)) < 0.05
    eps = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w
    return named("norm", {"x": x, "weight": w}, torch.where(hit, next_ulp(y), y) if pattern else eps, y)


CASES = [
    Case(
        "temperature",
        "meaning",
        "prime-rl PR #697, TRL #4159, NeMo-RL #902",
        "ratios far from 1 when the temperature is not 1",
        "temperature",
        warm,
        "one ulp of noise",
        "none",
        numerics,
    ),
    Case(
        "top-p",
        "meaning",
        "TRL #6789, prime-rl PR #2979",
        "all ratios below 1",
        "top_p",
        top_p,
        "one ulp of noise",
        "none",
        numerics,
    ),
    Case(
        "shift",
        "meaning",
        "mlx-lm-lora #80, maxtext PR #2102",
        "huge errors everywhere",
        "shift",
        shifted_column,
        "one ulp of noise",
        "none",
        numerics,
    ),
    Case(
        "padded-lanes",
        "meaning",
        "radixark/Megatron-LM PR #26",
        "lanes beyond the vocabulary counted in the sum",
        "padded_vocabulary",
        padded,
        "temperature instead",
        "temperature",
        warm,
    ),
    Case(
        "stale-cache",
        "state",
        "SkyRL #2246, NeMo-RL PR #4018",
        "the gap grows each step and resets on restart",
        "state",
        lambda: stale(False),
        "the cache reset",
        EQUAL,
        lambda: stale(True),
    ),
    Case(
        "dropout",
        "state",
        "reef PR #536, TRL PR #3234",
        "0.86 nats on pure on-policy data",
        "race",
        lambda: dropout(True),
        "eval mode",
        EQUAL,
        lambda: dropout(False),
    ),
    Case(
        "zig-zag",
        "layout",
        "miles PR #885",
        "hybrid model under context parallelism: small steady gap",
        "data",
        lambda: layout(True),
        "one order",
        EQUAL,
        lambda: layout(False),
    ),
    Case(
        "row-late",
        "layout",
        "ms-swift PR #8427",
        "every row is its neighbour's",
        "data",
        lambda: late_row(True),
        "own rows",
        EQUAL,
        lambda: late_row(False),
    ),
    Case(
        "merged-order",
        "layout",
        "merged projections",
        "columns are the same ones in another order",
        "data",
        lambda: merged_order(True),
        "one order",
        EQUAL,
        lambda: merged_order(False),
    ),
    Case(
        "scale-constant",
        "meaning",
        "sglang PR #35160",
        "every element off by one factor",
        "formula",
        lambda: constant(1.02),
        "factor 1",
        EQUAL,
        lambda: constant(1.0),
    ),
    Case(
        "captured-alias",
        "capture",
        "nnsight #630, TransformerLens #1639",
        "huge layer difference, tiny logit difference",
        "capture",
        lambda: aliased(False),
        "cloned at capture",
        EQUAL,
        lambda: aliased(True),
    ),
    Case(
        "sign-of-zero",
        "comparison",
        "fearless_simd #174",
        "equal() is true, the bits differ",
        "value_equal_only",
        lambda: zeros(-1.0),
        "one sign",
        EQUAL,
        lambda: zeros(1.0),
    ),
    Case(
        "nan-payload",
        "comparison",
        "pytorch #137337",
        "NaN is unequal to itself, payloads are not looked at",
        "value_equal_only",
        lambda: payload(True),
        "one payload",
        EQUAL,
        lambda: payload(False),
    ),
    Case(
        "empty-mask",
        "vacuous",
        "verl PR #7519, NeMo-RL #4039",
        "the check says 0 and proves nothing",
        "not exact",
        lambda: masked(False),
        "valid tokens",
        "exact",
        lambda: masked(True),
    ),
    Case(
        "one-ulp",
        "vacuous",
        "Soup #793",
        "a check that could not have failed",
        "differs",
        lambda: unseen(True),
        "nothing planted",
        EQUAL,
        lambda: unseen(False),
    ),
    Case(
        "noise-stays-unknown",
        "vacuous",
        "open-instruct #1473",
        "no arithmetic gives these bits",
        "unknown",
        lambda: noise(True),
        "another epsilon: a formula",
        "formula",
        lambda: noise(False),
    ),
]
