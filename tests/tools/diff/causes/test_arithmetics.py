"""Every option of every kind, planted, is named with its class or not named; it is never named with another class."""

from __future__ import annotations

import pytest
import torch

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
