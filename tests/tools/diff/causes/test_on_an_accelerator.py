"""Every arithmetic of every kind keeps to the device of its inputs.

No GPU is needed and no number is computed: PyTorch's meta tensors are on a device of their own and refuse to be mixed
with the CPU's.
"""

from __future__ import annotations

import pytest
import torch

from samebits.tools.diff.causes import accumulate
from samebits.tools.diff.causes.name import KINDS
from samebits.tools.diff.causes.observation import Observation
from samebits.tools.diff.causes.search import picks

SHAPES: dict[str, tuple[dict[str, tuple[tuple[int, ...], torch.dtype]], dict[str, float], tuple[int, ...]]] = {
    "norm": ({"x": ((8, 64), torch.bfloat16), "residual": ((8, 64), torch.bfloat16), "weight": ((64,), torch.bfloat16)},
             {}, (8, 64)),
    "rotary": ({"x": ((8, 2, 32), torch.bfloat16), "positions": ((8,), torch.int32),
                "inv_freq": ((16,), torch.float32)},
               {"base": 10000.0}, (8, 2, 32)),
    "linear": ({"x": ((8, 64), torch.bfloat16), "weight": ((32, 64), torch.bfloat16), "bias": ((32,), torch.bfloat16)},
               {}, (8, 32)),
    "attention": ({"q": ((8, 2, 16), torch.bfloat16), "k": ((8, 1, 16), torch.bfloat16),
                   "v": ((8, 1, 16), torch.bfloat16), "position": ((8,), torch.int32), "sink": ((2,), torch.bfloat16)},
                  {"scale": 0.25, "window": 4, "softcap": 20.0}, (8, 2, 16)),
    "activation": ({"gate": ((8, 64), torch.bfloat16), "up": ((8, 64), torch.bfloat16)}, {}, (8, 64)),
    "embedding": ({"ids": ((8,), torch.int64), "weight": ((32, 64), torch.bfloat16)}, {"scale": 8.0}, (8, 64)),
    "residual": ({"residual": ((8, 64), torch.bfloat16), "updates": ((8, 3, 64), torch.bfloat16)}, {}, (8, 64)),
    "logprob": (
        {"logits": ((8, 64), torch.float32), "token": ((8,), torch.int64)},
        {"temperature": 0.7, "vocabulary": 60},
        (8,),
    ),
    "reduce": ({"parts": ((4, 8, 64), torch.float32)}, {}, (8, 64)),
}  # fmt: skip


def ran(kind: str) -> tuple[int, int]:
    """Options of a kind that ran on meta tensors, and those that could not be followed: they look at values."""
    shapes, scalars, out = SHAPES[kind]
    done = left = 0
    made = {role: torch.zeros(shape, dtype=dtype, device="meta") for role, (shape, dtype) in shapes.items()}
    whole = torch.zeros(out, dtype=next(iter(made.values())).dtype, device="meta")
    whole = whole.to(torch.bfloat16) if kind == "embedding" else whole
    seen = Observation(kind, made, whole, whole, scalars)
    settings = KINDS[kind].settings(seen)
    for pick in (*picks(settings, 0), *picks(settings, 1)):
        try:
            assert KINDS[kind].run(seen, pick).device.type == "meta"
            done += 1
        except NotImplementedError:
            left += 1
    return done, left


@pytest.mark.parametrize("kind", SHAPES)
def test_an_arithmetic_stays_on_the_device_of_its_inputs(kind: str) -> None:
    done, left = ran(kind)
    assert done > left


def test_a_constant_of_another_device_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: the exponential with a table left on the CPU."""
    plain = accumulate.exponential
    table = torch.ones(8)
    monkeypatch.setattr(
        "samebits.tools.diff.causes.attention.exponential", lambda x, how: plain(x, how) * table.expand_as(x)
    )
    with pytest.raises(RuntimeError, match="device"):
        ran("attention")
