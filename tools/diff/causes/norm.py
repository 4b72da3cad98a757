"""RMS norm with an optional residual. Legend: T token rows, H hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from samebits.tools.diff.causes.observation import Arithmetic, Observation, Option, Setting
from samebits.tools.diff.causes.reductions import row_sum, row_sum_options

if TYPE_CHECKING:
    from collections.abc import Mapping

EPS = (1e-5, 1e-6, 1e-8, 0.0)


def settings(seen: Observation) -> tuple[Setting, ...]:
    """What two RMS norms may do differently."""
    own = seen.number("eps", 1e-6)
    found = [
        Setting("variance", "order_static", row_sum_options(seen["x"].shape[-1], seen["x"].device.type)),
        Setting("weight", "cast", (
            Option("after", "the normalised row is rounded to the activation dtype, then multiplied by the weight"),
            Option("before", "the weight is multiplied in float32 and the product rounded once"),
        )),
        Setting("offset", "formula", (
            Option("none", "the weight is used as stored"),
            Option("one", "1 + weight"),
        )),
        Setting("offset_sum", "cast", (
            Option("f32", "1 + weight in float32"),
            Option("rounded", "1 + weight rounded to the weight dtype"),
        )),
        Setting("eps", "formula", tuple(
            [Option("own", f"eps {own:g}")] + [Option(repr(eps), f"eps {eps:g}") for eps in EPS if eps != own]
        )),
        Setting("root", "precision", (
            Option("rsqrt", "torch.rsqrt"),
            Option("division", "1 / torch.sqrt"),
        )),
        Setting("inner", "precision", (
            Option("f32", "the norm is computed in float32"),
            Option("dtype", "the norm is computed in the activation dtype", whole=True),
        )),
    ]  # fmt: skip
    if seen.has("residual"):
        found.insert(0, Setting("sum", "cast", (
            Option("rounded", "the norm sees the residual sum rounded to the activation dtype"),
            Option("unrounded", "the norm sees the unrounded float32 residual sum"),
        )))  # fmt: skip
    return tuple(found)


def run(seen: Observation, pick: Mapping[str, str]) -> torch.Tensor:
    """[T, H] in the activation dtype."""
    x_TH, weight_H = seen["x"], seen["weight"]
    dtype = x_TH.dtype
    inner = torch.float32 if pick["inner"] == "f32" else dtype
    if seen.has("residual"):
        s_TH = x_TH.float() + seen["residual"].float()
        s_TH = s_TH if pick["sum"] == "unrounded" else s_TH.to(dtype).float()
    else:
        s_TH = x_TH.float()
    s_TH = s_TH.to(inner)
    eps = seen.number("eps", 1e-6) if pick["eps"] == "own" else float(pick["eps"])
    mean_T1 = row_sum(s_TH.pow(2), pick["variance"], mean=True)
    scaled_T1 = mean_T1 + eps
    root_T1 = torch.rsqrt(scaled_T1) if pick["root"] == "rsqrt" else 1 / torch.sqrt(scaled_T1)
    y_TH = s_TH * root_T1
    if pick["offset"] == "one":
        dtype_sum = weight_H.dtype if pick["offset_sum"] == "rounded" else torch.float32
        weight_H = (1 + weight_H.float()).to(dtype_sum)
    if pick["weight"] == "before":
        return (y_TH.float() * weight_H.float()).to(dtype)
    return (y_TH.to(dtype).float() * weight_H.float()).to(dtype)


NORM = Arithmetic("norm", ("x", "residual"), settings, run)
