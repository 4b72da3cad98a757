"""Rotary embedding. Legend: T token rows, N heads, D head dim, E half of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from samebits.tools.diff.causes.observation import Arithmetic, Observation, Option, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping


def settings(seen: Observation) -> tuple[Setting, ...]:
    """What two rotary embeddings may do differently."""
    found = [
        Setting("product", "cast", (
            Option("rounded", "both products and their sum are rounded to the activation dtype"),
            Option("once", "float32 throughout, one rounding at the end"),
            Option("fused_first", "the first product is fused into the sum (FMA), the second is rounded to float32"),
            Option("fused_second", "the second product is fused into the sum (FMA), the first is rounded to float32"),
        )),
        Setting("pairs", "formula", (
            Option("halves", "element i is rotated with element i + D/2"),
            Option("neighbours", "element 2i is rotated with element 2i + 1"),
        )),
        Setting("table", "cast", (
            Option("given", "cos and sin as given"),
            Option("rounded", "cos and sin rounded to the activation dtype"),
        )),
    ]  # fmt: skip
    if seen.has("positions"):
        found += [
            Setting("angle", "precision", (
                Option("f32", "angles in float32"),
                Option("dtype", "angles in the activation dtype"),
            )),
            Setting("position", "precision", (
                Option("exact", "positions as integers"),
                Option("dtype", "positions in the activation dtype"),
                Option("next", "positions one too high", cause="data"),
                Option("previous", "positions one too low", cause="data"),
            )),
            Setting("frequencies", "cast", (
                Option("given", "frequencies as given"),
                Option("rounded", "frequencies once rounded to the activation dtype"),
            )),
        ]  # fmt: skip
    if seen.has("positions") and "base" in seen.scalars and seen["x"].device.type != "cpu":
        there = Option("there", "frequencies computed on the accelerator, not on the CPU", cause="precision")
        found[-1] = replace(found[-1], options=(*found[-1].options, there))
    return tuple(found)


def tables(seen: Observation, pick: Mapping[str, str]) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, [T, 1, E] float32."""
    dtype = seen["x"].dtype
    if seen.has("cos"):
        cos_TE, sin_TE = seen["cos"].float(), seen["sin"].float()
    else:
        shift = {"next": 1, "previous": -1}.get(pick["position"], 0)
        position_T = (seen["positions"] + shift).float()
        position_T = position_T.to(dtype).float() if pick["position"] == "dtype" else position_T
        inverse_E = seen["inv_freq"].float()
        if pick["frequencies"] == "there":
            size = 2 * len(inverse_E)
            exponent_E = torch.arange(0, size, 2, dtype=torch.float32, device=inverse_E.device) / size
            inverse_E = 1.0 / seen.number("base", 1e4) ** exponent_E
        inverse_E = inverse_E.to(dtype).float() if pick["frequencies"] == "rounded" else inverse_E
        angle_TE = position_T[:, None] * inverse_E
        if pick["angle"] == "dtype":
            angle_TE = angle_TE.to(dtype)
        cos_TE, sin_TE = angle_TE.cos().float(), angle_TE.sin().float()
    if pick["table"] == "rounded":
        cos_TE, sin_TE = cos_TE.to(dtype).float(), sin_TE.to(dtype).float()
    return cos_TE[:, None], sin_TE[:, None]


def run(seen: Observation, pick: Mapping[str, str]) -> torch.Tensor:
    """[T, N, D] in x's dtype."""
    x_TND = seen["x"]
    cos, sin = tables(seen, pick)
    if pick["pairs"] == "halves":
        a_TNE, b_TNE = x_TND.float().chunk(2, -1)
    else:
        a_TNE, b_TNE = x_TND.float()[..., 0::2], x_TND.float()[..., 1::2]
    first = combine(a_TNE, cos, -b_TNE, sin, pick["product"], x_TND.dtype)
    second = combine(b_TNE, cos, a_TNE, sin, pick["product"], x_TND.dtype)
    if pick["pairs"] == "halves":
        return torch.cat([first, second], -1)
    return torch.stack([first, second], -1).flatten(-2)


def combine(
    a: torch.Tensor, cos: torch.Tensor, b: torch.Tensor, sin: torch.Tensor, product: str, dtype: torch.dtype
) -> torch.Tensor:
    """a * cos + b * sin; float32 products of float32 factors are exact in float64, which emulates an FMA."""
    if product == "rounded":
        return (a * cos).to(dtype) + (b * sin).to(dtype)
    if product == "once":
        return (a * cos + b * sin).to(dtype)
    fused, plain = (a.double() * cos.double(), (b * sin).double())
    if product == "fused_second":
        fused, plain = (b.double() * sin.double(), (a * cos).double())
    return (fused + plain).float().to(dtype)


ROTARY = Arithmetic("rotary", ("x", "cos", "sin", "positions"), settings, run)
