"""Activation, embedding, residual adds and sums of partial results.

Legend: T token rows, F features, H hidden, P parts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from samebits.tools.diff.causes.observation import Arithmetic, Observation, Option, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping


def activation_settings(seen: Observation) -> tuple[Setting, ...]:
    """What two activations may do differently."""
    silu = (
        Option("silu", "PyTorch's silu"),
        Option("sigmoid", "x * sigmoid(x)"),
        Option("quotient", "x / (1 + exp(-x))"),
        Option("exp2", "x / (1 + exp2(-x log2 e))"),
        Option("tanh", "x * (1 + tanh(x / 2)) / 2"),
    )
    gelu = (
        Option("erf", "gelu by erf"),
        Option("tanh", "gelu by tanh", cause="formula"),
        Option("quick", "x * sigmoid(1.702 x)", cause="formula"),
    )
    is_gelu = seen.scalars.get("name", "silu") == "gelu"
    found = [Setting("function", "precision", gelu if is_gelu else silu)]
    if seen.has("up"):
        found.append(Setting("inner", "cast", (
            Option("rounded", "the activation is rounded before the product"),
            Option("f32", "the activation stays in float32 until after the product"),
        )))  # fmt: skip
    return tuple(found)


def activation(seen: Observation, pick: Mapping[str, str]) -> torch.Tensor:
    """[T, F] in gate's dtype."""
    dtype, x_TF = seen["gate"].dtype, seen["gate"].float()
    how = pick["function"]
    if seen.scalars.get("name", "silu") == "gelu":
        y_TF = (
            x_TF * torch.sigmoid(1.702 * x_TF)
            if how == "quick"
            else F.gelu(x_TF, approximate="tanh" if how == "tanh" else "none")
        )
    elif how == "silu":
        y_TF = F.silu(x_TF)
    elif how == "sigmoid":
        y_TF = x_TF * torch.sigmoid(x_TF)
    elif how == "tanh":
        y_TF = x_TF * (1 + torch.tanh(x_TF / 2)) / 2
    else:
        y_TF = x_TF / (1 + (torch.exp(-x_TF) if how == "quotient" else torch.exp2(-x_TF * math.log2(math.e))))
    if not seen.has("up"):
        return y_TF.to(dtype)
    y_TF = y_TF.to(dtype).float() if pick["inner"] == "rounded" else y_TF
    return (y_TF * seen["up"].float()).to(dtype)


def embedding_settings(seen: Observation) -> tuple[Setting, ...]:
    """What two embeddings may do differently."""
    return (
        Setting("scale", "cast", (
            Option("rounded", "the scale is rounded to the weight dtype, then multiplied"),
            Option("f32", "the scale is multiplied in float32"),
            Option("none", "no scale", cause="formula"),
        )),
        Setting("row", "data", (
            Option("own", "the row of the token"), Option("next", "the row of the next token id"),
            Option("previous", "the row of the previous token id"),
        )),
    )  # fmt: skip


def embedding(seen: Observation, pick: Mapping[str, str]) -> torch.Tensor:
    """[T, H] in the weight's dtype."""
    weight_VH, scale = seen["weight"], torch.tensor(seen.number("scale", 1.0), device=seen["weight"].device)
    shift = {"next": 1, "previous": -1}.get(pick["row"], 0)
    row_TH = weight_VH[(seen["ids"].long() + shift) % weight_VH.shape[0]]
    if pick["scale"] == "none":
        return row_TH
    scale = scale.to(row_TH.dtype) if pick["scale"] == "rounded" else scale
    return (row_TH.float() * scale.float()).to(row_TH.dtype)


def residual_settings(seen: Observation) -> tuple[Setting, ...]:
    """What two residual streams may do differently."""
    return (
        Setting("stream", "cast", (
            Option("dtype", "the stream is rounded to the activation dtype after each add"),
            Option("f32", "the stream is kept in float32 and rounded at the end"),
        )),
    )  # fmt: skip


def residual(seen: Observation, pick: Mapping[str, str]) -> torch.Tensor:
    """[T, H] in the output's dtype."""
    dtype, out = seen["residual"].dtype, seen.rollout.dtype
    updates = seen["updates"].unbind(1) if seen.has("updates") else (seen["x"],)
    stream_TH = seen["residual"].float()
    for update_TH in updates:
        stream_TH = stream_TH + update_TH.float()
        stream_TH = stream_TH.to(dtype).float() if pick["stream"] == "dtype" else stream_TH
    return stream_TH.to(out)


def reduce_settings(seen: Observation) -> tuple[Setting, ...]:
    """Orders of an all-reduce over P parts."""
    count = seen["parts"].shape[0]
    order = [
        Option("ascending", "parts added in rank order"),
        Option("descending", "parts added in reverse rank order"),
    ]
    order += [Option(f"from:{rank}", f"a ring that starts at rank {rank}") for rank in range(1, count)]
    order += [
        Option(f"owner:{offset}", f"reduce-scatter: the sum of a row starts {offset} after the rank that owns it")
        for offset in range(count)
    ]
    order += [Option("tree", "halves added in a tree"), Option("float64", "summed in float64", cause="precision")]
    return (
        Setting("order", "order_static", tuple(order)),
        Setting("hop", "cast", (
            Option("f32", "running sums stay in float32"),
            Option("rounded", "running sums are rounded to the dtype of the parts at each hop"),
        )),
    )  # fmt: skip


def reduced(parts: list[torch.Tensor], hop: str, dtype: torch.dtype) -> torch.Tensor:
    """Parts added one after the other."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
        total = total.to(dtype).float() if hop == "rounded" else total
    return total


def reduction(seen: Observation, pick: Mapping[str, str]) -> torch.Tensor:
    """[T, H] in the output's dtype."""
    parts, out = list(seen["parts"].unbind(0)), seen.rollout.dtype
    count, dtype = len(parts), parts[0].dtype
    name, _, number = pick["order"].partition(":")
    if name == "float64":
        return torch.stack(parts).double().sum(0).to(out)
    if name == "tree":
        while len(parts) > 1:
            half = len(parts) // 2
            sums = [reduced([parts[i], parts[i + half]], pick["hop"], dtype) for i in range(half)]
            parts = sums + parts[2 * half :]
        return parts[0].to(out)
    if name == "owner":
        rows = parts[0].shape[0]
        row_T = torch.arange(rows, device=parts[0].device)
        sums = [
            reduced([parts[(rank + int(number) + i) % count] for i in range(count)], pick["hop"], dtype)
            for rank in range(count)
        ]
        return torch.stack(sums)[row_T * count // rows, row_T].to(out)
    start = int(number) if name == "from" else 0
    turned = parts[start:] + parts[:start]
    return reduced(turned[::-1] if name == "descending" else turned, pick["hop"], dtype).to(out)


ACTIVATION = Arithmetic("activation", ("gate", "up"), activation_settings, activation)
EMBEDDING = Arithmetic("embedding", ("ids",), embedding_settings, embedding)
RESIDUAL = Arithmetic("residual", ("x", "residual", "updates"), residual_settings, residual)
REDUCE = Arithmetic("reduce", (), reduce_settings, reduction)
