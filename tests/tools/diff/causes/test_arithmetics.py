"""Every option of every kind, planted, is named with its class or not named; it is never named with another class."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from samebits.tools.diff.bits import next_ulp
from samebits.tools.diff.causes.name import KINDS, name_cause
from samebits.tools.diff.causes.observation import Observation

MAKE = torch.Generator().manual_seed(7)


def r(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=MAKE)


def b(*shape: int) -> torch.Tensor:
    return r(*shape).bfloat16()


INPUTS: dict[str, tuple[dict[str, torch.Tensor], dict[str, float], torch.dtype]] = {
    "norm": ({"x": b(64, 256), "residual": b(64, 256), "weight": (1 + 0.1 * r(256)).bfloat16()}, {}, torch.bfloat16),
    "rotary": (
        {"x": b(64, 2, 32), "positions": torch.arange(300, 364), "inv_freq": 10000 ** (-torch.arange(0, 32, 2) / 32)},
        {},
        torch.bfloat16,
    ),
    "linear": ({"x": r(32, 256), "weight": r(64, 256), "bias": r(64)}, {}, torch.float32),
    "attention": (
        {"q": r(8, 2, 16), "k": r(80, 1, 16), "v": r(80, 1, 16), "position": torch.arange(72, 80), "sink": r(2)},
        {"scale": 0.25, "window": 30, "softcap": 20.0},
        torch.float32,
    ),
    "activation": ({"gate": b(32, 256), "up": b(32, 256)}, {}, torch.bfloat16),
    "router": ({"logits": r(256, 16)}, {"top_k": 2, "scale": 2.5}, torch.float32),
    "experts": (
        {
            "x": b(16, 32),
            "w13": 0.3 * b(4, 64, 32),
            "w2": 0.3 * b(4, 32, 32),
            "weights": torch.softmax(r(16, 2), -1),
            "ids": torch.tensor([[0, 1], [2, 3], [1, 3], [3, 0]] * 4),
        },
        {},
        torch.bfloat16,
    ),
    "embedding": ({"ids": torch.arange(3, 35), "weight": b(64, 64)}, {"scale": 22.627417}, torch.bfloat16),
    "logprob": (
        {"logits": 3 * r(64, 1024), "token": torch.arange(64)},
        {"temperature": 0.7, "vocabulary": 1000},
        torch.float32,
    ),
    "residual": ({"residual": b(16, 64), "updates": b(16, 8, 64)}, {}, torch.bfloat16),
    "reduce": ({"parts": r(4, 16, 64)}, {}, torch.float32),
}


def planted() -> list[tuple[str, str, str]]:
    """(kind, setting, option) for every option that is searched for and is not the plain one."""
    found = []
    for kind, (inputs, scalars, dtype) in INPUTS.items():
        empty = torch.zeros(1, dtype=dtype)
        settings = KINDS[kind].settings(Observation(kind, inputs, empty, empty, scalars))
        found += [(kind, one.name, option.name) for one in settings for option in one.options[1:] if not option.known]
    return found


def observe(kind: str, setting: str, option: str) -> tuple[Observation, str]:
    """The plain arithmetic against one with one option changed, and the class of that option."""
    inputs, scalars, dtype = INPUTS[kind]
    empty = torch.zeros(1, dtype=dtype)
    blank = Observation(kind, inputs, empty, empty, scalars)
    settings = KINDS[kind].settings(blank)
    plain = {one.name: one.options[0].name for one in settings}
    changed = next(one for one in settings if one.name == setting)
    wanted = next(one for one in changed.options if one.name == option)
    ours, theirs = (KINDS[kind].run(blank, pick) for pick in ({**plain, setting: option}, plain))
    return Observation(kind, inputs, ours, theirs, scalars), wanted.cause or changed.cause


@pytest.mark.parametrize(("kind", "setting", "option"), planted())
def test_a_planted_option_is_never_blamed_on_another_class(kind: str, setting: str, option: str) -> None:
    seen, wanted = observe(kind, setting, option)
    cause = name_cause(seen).cause
    assert cause.name in (wanted, "unknown", "vacuous"), cause.why
    if cause.name == "unknown":
        assert "several explanations" in cause.why or "by chance" in cause.why


@pytest.mark.parametrize("kind", [kind for kind in INPUTS if kind not in ("router", "embedding")])
def test_noise_of_one_ulp_is_unknown_in_every_kind(kind: str) -> None:
    inputs, scalars, dtype = INPUTS[kind]
    empty = torch.zeros(1, dtype=dtype)
    blank = Observation(kind, inputs, empty, empty, scalars)
    plain = {one.name: one.options[0].name for one in KINDS[kind].settings(blank)}
    out = KINDS[kind].run(blank, plain)
    hit = torch.rand(out.shape, generator=torch.Generator().manual_seed(1)) < 0.3
    cause = name_cause(Observation(kind, inputs, torch.where(hit, next_ulp(out), out), out, scalars)).cause
    assert cause.name == "unknown", cause.why


def test_most_planted_options_are_named() -> None:
    """The check above would pass if everything were unknown."""
    named = 0
    for kind, setting, option in (
        ("norm", "sum", "unrounded"),
        ("norm", "weight", "before"),
        ("rotary", "product", "once"),
        ("rotary", "pairs", "neighbours"),
        ("linear", "factors", "tf32"),
        ("attention", "sink", "none"),
        ("attention", "window", "inclusive"),
        ("activation", "inner", "f32"),
        ("router", "renormalise", "other"),
        ("experts", "hidden", "f32"),
        ("embedding", "scale", "f32"),
        ("logprob", "vocabulary", "padded"),
        ("residual", "stream", "f32"),
        ("reduce", "order", "from:1"),
    ):
        seen, wanted = observe(kind, setting, option)
        named += name_cause(seen).cause.name == wanted
    assert named == 14


def by_passes(rows: list[int], *, merged: bool) -> Observation:
    """A linear whose kernel depends on how many rows it gets: the rollout ran it pass by pass, the trainer at once."""
    seen = Observation("linear", {"x": r(32, 256), "weight": r(64, 256)}, torch.empty(32, 64), torch.empty(32, 64))
    number_T = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(rows))
    inputs = {**seen.inputs, "pass": number_T}
    if merged:
        inputs |= {"merged": torch.cat([r(32, 256), seen["weight"]]), "columns": torch.arange(32, 96)}
    return replace(seen, inputs=inputs)


@pytest.mark.parametrize("merged", [False, True])
def test_rows_that_ran_together_name_the_batch(monkeypatch: pytest.MonkeyPatch, *, merged: bool) -> None:
    """The kernel is a stand-in whose order follows the number of rows and outputs, as cuBLAS's does."""

    def native(x_TK: torch.Tensor, weight_NK: torch.Tensor, bias_N: object = None) -> torch.Tensor:
        parts = 2 if len(x_TK) < 16 else 3
        parts += len(weight_NK) > 64
        pieces = zip(x_TK.chunk(parts, 1), weight_NK.chunk(parts, 1), strict=True)
        out: torch.Tensor = sum(((x.double() @ w.double().t()).float() for x, w in pieces), torch.zeros(()))
        return out

    monkeypatch.setattr(F, "linear", native)
    seen = by_passes([20, 4, 4, 4], merged=merged)
    pick = {"order": "merged_passes" if merged else "passes"}
    plain = {"order": "native", "factors": "given", "output": "own"}
    run = KINDS["linear"].run
    cause = name_cause(replace(seen, rollout=run(seen, {**plain, **pick}), trainer=run(seen, plain)))
    assert cause.cause.name == "order_batch", cause.cause.why
    assert cause.rollout is not None
    assert cause.rollout["order"] == pick["order"]
    # Control: other rows together than the ones said, and the arithmetic does not fit any more.
    other = replace(by_passes([4, 20, 4, 4], merged=merged), inputs={**seen.inputs, "pass": seen["pass"].flip(0)})
    wrong = name_cause(replace(other, rollout=run(seen, {**plain, **pick}), trainer=run(seen, plain)))
    assert wrong.rollout is None or wrong.rollout["order"] != pick["order"]
