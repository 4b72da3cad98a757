"""Norms, residual streams and rotary embeddings. Legend: T rows, H hidden, D head dim."""

from __future__ import annotations

import torch
from case_form import EQUAL, Case, named, random, word
from case_probe import alone

from samebits.tools.diff.causes.fingerprint import fingerprint
from samebits.tools.diff.causes.name import name_cause
from samebits.tools.diff.causes.observation import Observation


def lanes(x_TH: torch.Tensor, width: int) -> torch.Tensor:
    """Sum of squares by `width` lanes, then a tree: [T, 1]."""
    total = x_TH.pow(2).view(len(x_TH), -1, width)
    partial = total[:, 0]
    for i in range(1, total.shape[1]):
        partial = partial + total[:, i]
    while partial.shape[1] > 1:
        half = partial.shape[1] // 2
        partial = partial[:, :half] + partial[:, half:]
    return partial


def rms(
    x_TH: torch.Tensor, w_H: torch.Tensor, *, width: int = 0, late: bool = True, offset: float = 0.0
) -> torch.Tensor:
    s = x_TH.float()
    mean = lanes(s, width) / s.shape[1] if width else s.pow(2).mean(-1, keepdim=True)
    y = s * torch.rsqrt(mean + 1e-6)
    w = offset + w_H.float()
    return (y.to(x_TH.dtype).float() * w if late else y * w).to(x_TH.dtype)


def block_width(same: bool) -> str:
    r = random(11)
    x, w = r(64, 2048), r(2048)
    return named("norm", {"x": x, "weight": w}, rms(x, w, width=256 if same else 1024), rms(x, w, width=256))


def threshold(fixed: bool) -> str:
    """The block width changes at a row count."""
    r = random(12)
    x, w = r(40, 2048), r(2048)
    return word(alone(lambda rows: rms(rows, w, width=1024 if fixed or len(rows) < 32 else 256), x))


def residual_rounding(fault: str) -> str:
    """The norm sees the unrounded residual sum, or another cast instead."""
    r = random(13)
    x, res, w = r(128, 512).bfloat16(), r(128, 512).bfloat16(), (1 + 0.1 * r(512)).bfloat16()
    s = x.float() + res.float()
    ours = {"unrounded": s, "none": s.bfloat16().float()}[fault]
    y = (ours * torch.rsqrt(ours.pow(2).mean(-1, keepdim=True) + 1e-6)).bfloat16() * w
    return named("norm", {"x": x, "residual": res, "weight": w}, y, rms(s.bfloat16(), w))


def cast_order(late: bool) -> str:
    r = random(14)
    x, w = r(128, 512).bfloat16(), (1 + 0.1 * r(512)).bfloat16()
    return named("norm", {"x": x, "weight": w}, rms(x, w, late=late), rms(x, w))


def one_plus(offset: float) -> str:
    """Gemma's 1 + w; w is not made as w' - 1, which would be exact."""
    r = random(15)
    x, w = r(128, 512).bfloat16(), (0.1 * r(512)).bfloat16()
    return named("norm", {"x": x, "weight": w}, rms(x, w, offset=offset), rms(x, w, offset=1.0))


def one_plus_rounded() -> str:
    r = random(15)
    x, w = r(128, 512).bfloat16(), (0.1 * r(512)).bfloat16()
    return named("norm", {"x": x, "weight": w}, rms(x, (1 + w.float()).bfloat16()), rms(x, w, offset=1.0))


def eps(value: float) -> str:
    r = random(16)
    x, w = 0.01 * r(128, 512), r(512)
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + value) * w
    return named("norm", {"x": x, "weight": w}, y, rms(x, w), eps=1e-6)


def stream(wide: bool) -> str:
    """32 updates into a float32 or bfloat16 stream."""
    r = random(17)
    updates, start = r(16, 32, 128).bfloat16(), r(16, 128).bfloat16()
    low, high = start, start.float()
    for update in updates.unbind(1):
        low, high = low + update, high + update.float()
    return named("residual", {"residual": start, "updates": updates}, high.bfloat16() if wide else low, low)


def output_dtype(equal: bool) -> str:
    """Autocast gave one norm a float32 output: said before any value is compared."""
    r = random(18)
    x, w = r(16, 256), r(256)
    wide = rms(x, w)
    return named("norm", {"x": x, "weight": w}, wide, wide if equal else wide.bfloat16())


def inverse(dim: int = 64) -> torch.Tensor:
    return 10000 ** (-torch.arange(0, dim, 2).float() / dim)


def rope(
    x_TND: torch.Tensor,
    position_T: torch.Tensor,
    inverse_E: torch.Tensor,
    *,
    low_angle: bool = False,
    once: bool = False,
    neighbours: bool = False,
) -> torch.Tensor:
    angle = position_T.float()[:, None] * inverse_E
    angle = angle.bfloat16() if low_angle else angle
    cos, sin = angle.cos().float()[:, None], angle.sin().float()[:, None]
    a, b = (x_TND.float()[..., 0::2], x_TND.float()[..., 1::2]) if neighbours else x_TND.float().chunk(2, -1)
    if once:
        first, second = (a * cos - b * sin).to(x_TND.dtype), (b * cos + a * sin).to(x_TND.dtype)
    else:
        dtype = x_TND.dtype
        first = (a * cos).to(dtype) + (-b * sin).to(dtype)
        second = (b * cos).to(dtype) + (a * sin).to(dtype)
    return torch.stack([first, second], -1).flatten(-2) if neighbours else torch.cat([first, second], -1)


def rotary(count: int = 128, **fault: bool) -> Observation:
    r = random(19)
    x, position, table = r(count, 2, 64).bfloat16(), torch.arange(count), inverse()
    inputs = {"x": x, "positions": position, "inv_freq": table}
    return Observation("rotary", inputs, rope(x, position, table, **fault), rope(x, position, table), position=position)


def rotary_word(**fault: bool) -> str:
    return word(name_cause(rotary(**fault)).cause)


def neighbours() -> str:
    """Everything but position 0 is wrong."""
    seen = rotary(neighbours=True)
    return (
        word(name_cause(seen).cause)
        if "all rows from 1 on and none before" in fingerprint(seen)
        else "position 0 differs"
    )


def low_positions(count: int) -> str:
    """bfloat16 holds integers up to 256: the first bad position is 257."""
    r = random(20)
    x, position, table = r(count, 2, 64).bfloat16(), torch.arange(count), inverse()
    bad = rope(x, position.bfloat16(), table)
    seen = Observation(
        "rotary", {"x": x, "positions": position, "inv_freq": table}, bad, rope(x, position, table), position=position
    )
    cause = name_cause(seen).cause
    return word(cause) if cause.name == "vacuous" or "first at row 257," in cause.fingerprint else cause.fingerprint


def rounded_buffer(rounded: bool) -> str:
    """module.to(bfloat16).float(): the frequencies are gone for good."""
    r = random(21)
    x, position, table = r(128, 2, 64).bfloat16(), torch.arange(128), inverse()
    other = table.bfloat16().float() if rounded else table
    return named(
        "rotary", {"x": x, "positions": position, "inv_freq": table}, rope(x, position, other), rope(x, position, table)
    )


def shifted_positions(shift: int) -> str:
    """One pad token counted as a position."""
    r = random(22)
    x, position, table = r(128, 2, 64).bfloat16(), torch.arange(1, 129), inverse()
    inputs = {"x": x, "positions": position, "inv_freq": table}
    return named("rotary", inputs, rope(x, position + shift, table), rope(x, position, table))


def fused(first: bool) -> str:
    """Which product of a*b - c*d is fused depends on the tile: an FMA is a rounding that is not there."""
    r = random(23)
    x, position, table = r(256, 4, 64), torch.arange(256), inverse()
    angle = position.float()[:, None] * table
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x.chunk(2, -1)

    def fma(p: torch.Tensor, q: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
        return (p.double() * q.double() + rounded.double()).float()

    one = torch.cat([fma(a, cos, -b * sin), fma(b, cos, a * sin)], -1)
    two = torch.cat([fma(-b, sin, a * cos), fma(a, sin, b * cos)], -1)
    return named("rotary", {"x": x, "positions": position, "inv_freq": table}, one if first else two, two)


CASES = [
    Case(
        "norm-block-width",
        "norm",
        "vllm #48271",
        "two kernels reduce the variance with another block width",
        "order_static",
        lambda: block_width(False),
        "one width",
        EQUAL,
        lambda: block_width(True),
    ),
    Case(
        "norm-row-threshold",
        "norm",
        "vllm PR #48997",
        "scoring 256 or more tokens disagrees with the decode that made them",
        "order_batch",
        lambda: threshold(False),
        "one width for every row count",
        EQUAL,
        lambda: threshold(True),
    ),
    Case(
        "norm-unrounded-residual",
        "norm",
        "vllm fused_add_rms_norm against transformers",
        "the norm sees the float32 residual sum",
        "cast",
        lambda: residual_rounding("unrounded"),
        "the sum rounded first on both sides",
        EQUAL,
        lambda: residual_rounding("none"),
    ),
    Case(
        "norm-cast-order",
        "norm",
        "TransformerEngine #1132, tinygrad PR #5095",
        "rounding before or after the weight",
        "cast",
        lambda: cast_order(False),
        "both after",
        EQUAL,
        lambda: cast_order(True),
    ),
    Case(
        "norm-one-plus",
        "norm",
        "gemma ports",
        "the weight is used as w instead of 1 + w",
        "formula",
        lambda: one_plus(0.0),
        "1 + w rounded to bfloat16: a cast, not a formula",
        "cast",
        one_plus_rounded,
    ),
    Case(
        "norm-eps",
        "norm",
        "configuration drift",
        "another epsilon",
        "formula",
        lambda: eps(1e-5),
        "the same epsilon",
        EQUAL,
        lambda: eps(1e-6),
    ),
    Case(
        "residual-stream",
        "norm",
        "sglang PR #18639, prime-rl PR #1167",
        "trainer and engine drift layer by layer",
        "cast",
        lambda: stream(True),
        "both in bfloat16",
        EQUAL,
        lambda: stream(False),
    ),
    Case(
        "output-dtype",
        "norm",
        "FastVideo PR #1587",
        "numbers move after an upgrade, under autocast",
        "cast",
        lambda: output_dtype(False),
        "equal dtypes",
        EQUAL,
        lambda: output_dtype(True),
    ),
    Case(
        "rope-angle",
        "rotary",
        "transformers #25681, gpt-neox #873",
        "logits differ more at long positions",
        "precision",
        lambda: rotary_word(low_angle=True),
        "angles in float32",
        EQUAL,
        rotary_word,
    ),
    Case(
        "rope-buffer",
        "rotary",
        "NeMo Automodel PR #2549, torchtitan PR #2881",
        "own reload exact, other engine off",
        "cast",
        lambda: rounded_buffer(True),
        "the buffer kept",
        EQUAL,
        lambda: rounded_buffer(False),
    ),
    Case(
        "rope-positions",
        "rotary",
        "diffusers #13920, paz PR #415",
        "decode and full pass differ from position 257 on",
        "precision",
        lambda: low_positions(300),
        "257 positions: all of them exact in bfloat16",
        EQUAL,
        lambda: low_positions(257),
    ),
    Case(
        "rope-elided-cast",
        "rotary",
        "torchtitan PR #2575",
        "compiled: the rounding between the products is gone",
        "cast",
        lambda: rotary_word(once=True),
        "neighbour pairing instead",
        "formula",
        neighbours,
    ),
    Case(
        "rope-fma",
        "rotary",
        "torchtitan PR #4454, sglang PR #34347",
        "two tile sizes of one kernel differ where terms cancel",
        "cast",
        lambda: fused(True),
        "the same product fused",
        EQUAL,
        lambda: fused(False),
    ),
    Case(
        "rope-pairing",
        "rotary",
        "NeMo Automodel PR #2039, nanotron PR #214",
        "everything but position 0 is wrong",
        "formula",
        neighbours,
        "a cast instead",
        "cast",
        lambda: rotary_word(once=True),
    ),
    Case(
        "rope-pad-shift",
        "rotary",
        "unsloth PR #3795, transformers #22161",
        "short prompts in a padded batch come out wrong",
        "data",
        lambda: shifted_positions(1),
        "own positions",
        EQUAL,
        lambda: shifted_positions(0),
    ),
]
