"""Softmax attention of queries over one sequence's keys.

Legend: T queries, S keys, Q query heads, N key heads, D head dim, V value dim.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from samebits.tools.diff.causes.accumulate import exponential, last_sum, product
from samebits.tools.diff.causes.observation import Arithmetic, Observation, Option, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping

SPLITS = (2, 3, 4, 5, 6, 7, 8)
SIZES = (16, 32, 64, 96, 128, 256, 512)
PRODUCTS = (
    ("native", "{}: PyTorch's float32 product"),
    ("ascending", "{}: one chain of fused multiply-adds, ascending"),
    ("pairs", "{}: pairs, odd before even (VDPBF16PS)"),
    ("tiles", "{}: tiles of 32, even and odd chains (AMX)"),
)
COSTLY = 1 << 33
"""Multiply-adds above which the written-out product orders of known kernels are not tried."""


def kernels(seen: Observation) -> tuple[dict[str, str], ...]:
    """vLLM's CPU attention and PyTorch's CPU flash attention, each on machines with and without AMX."""
    if seen["q"].device.type != "cpu" or seen["q"].numel() * seen["k"].shape[0] > COSTLY:
        return ()
    vllm = {"exponent": "quintic", "sum": "lanes", "divide": "reciprocal"}
    vllm |= {"score_product": "ascending", "value_product": "ascending"}
    amx = {"sum": "lanes", "divide": "reciprocal", "probability": "rounded"}
    amx |= {"score_product": "tiles", "value_product": "tiles"}
    flash = {"exponent": "cubic", "sum": "lanes", "divide": "reciprocal", "probability": "rounded"}
    flash |= {"split": "online:512"} if seen["k"].shape[0] > 512 else {}
    orders = (("tiles", "tiles"), ("pairs", "pairs"), ("ascending", "ascending"), ("native", "native"))
    return (vllm, amx, *({**flash, "score_product": a, "value_product": b} for a, b in orders))


def settings(seen: Observation) -> tuple[Setting, ...]:
    """What two attention kernels may do differently."""
    keys = seen["k"].shape[0]
    split = [Option("one", "one pass over all keys")]
    split += [Option(f"parts:{n}", f"keys cut into {n} parts, merged by log-sum-exp") for n in SPLITS if n <= keys]
    split += [Option(f"merge:{n}", f"key segments of {n}, merged by log-sum-exp") for n in SIZES if n < keys]
    split += [Option(f"online:{n}", f"running maximum and sum over key blocks of {n}") for n in SIZES if n < keys]
    found = [
        Setting("split", "order_static", tuple(split)),
        Setting("scores", "cast", (
            Option("f32", "scores stay in float32"),
            Option("rounded", "scores are rounded to the activation dtype before the scale"),
        )),
        Setting("scale", "cast", (
            Option("scores", "the scale multiplies the scores"),
            Option("query", "the scale multiplies the query in float32", cause="order_static"),
            Option("query_rounded", "the scaled query is rounded to the activation dtype"),
            Option("both_rounded", "query and key are each scaled by its root and rounded"),
        )),
        Setting("probability", "cast", (
            Option("f32", "probabilities stay in float32"),
            Option("rounded", "probabilities are rounded to the activation dtype before the value product"),
        )),
        Setting("divide", "order_static", (
            Option("after", "the value product is divided by the sum"),
            Option("before", "probabilities are normalised before the value product"),
            Option("reciprocal", "the value product is multiplied by the reciprocal of the sum"),
        )),
        Setting("softmax", "precision", (
            Option("f32", "softmax in float32"),
            Option("dtype", "softmax in the activation dtype"),
        )),
        Setting("exponent", "order_static", (
            Option("exp", "exp(s)"),
            Option("exp2", "exp2(s * log2 e)"),
            Option("cubic", "a cubic approximation of exp in full vectors (PyTorch's fexp_u20)", "precision"),
            Option("quintic", "a polynomial of degree five for exp (exp_u20)", "precision"),
        )),
        Setting("score_product", "order_static", tuple(
            Option(name, words.format("scores"), known=name != "native") for name, words in PRODUCTS
        )),
        Setting("value_product", "order_static", tuple(
            Option(name, words.format("the value product"), known=name != "native") for name, words in PRODUCTS
        )),
        Setting("sum", "order_static", (
            Option("native", "the sum of exponentials as PyTorch adds"),
            Option("lanes", "the sum of exponentials in 16 lanes", known=True),
        )),
        Setting("causal", "formula", (
            Option("own", "a query sees the keys up to its own position"),
            Option("strict", "a query does not see its own key"),
            Option("next", "a query sees one key too many"),
            Option("none", "no causal mask"),
        )),
    ]  # fmt: skip
    return tuple(found + masks_and_caps(seen))


def masks_and_caps(seen: Observation) -> list[Setting]:
    """Settings of what only some models have."""
    found: list[Setting] = []
    if seen.number("window", 0):
        found.append(Setting("window", "formula", (
            Option("exclusive", "the window counts the query itself"),
            Option("inclusive", "the window counts the keys before the query"),
            Option("none", "no window"),
        )))  # fmt: skip
    if seen.number("softcap", 0):
        found.append(Setting("softcap", "formula", (
            Option("given", "scores are capped"), Option("none", "scores are not capped"),
        )))  # fmt: skip
    if seen.has("sink"):
        found.append(Setting("sink", "formula", (
            Option("given", "the sink takes part in the softmax"), Option("none", "the sink is dropped"),
        )))  # fmt: skip
    return found


def scores(seen: Observation, pick: Mapping[str, str]) -> torch.Tensor:
    """Masked scores [Q, T, S], float32."""
    dtype, scale = seen["q"].dtype, seen.number("scale", 1.0)
    q_QTD = seen["q"].transpose(0, 1).float()
    k_QSD = seen["k"].transpose(0, 1).float().repeat_interleave(q_QTD.shape[0] // seen["k"].shape[1], 0)
    if pick["scale"].startswith("query"):
        q_QTD = q_QTD * scale
        q_QTD = q_QTD.to(dtype).float() if pick["scale"] == "query_rounded" else q_QTD
    elif pick["scale"] == "both_rounded":
        root = math.sqrt(scale)
        q_QTD, k_QSD = (q_QTD * root).to(dtype).float(), (k_QSD * root).to(dtype).float()
    s_QTS = product(q_QTD, k_QSD.transpose(1, 2), pick["score_product"])
    s_QTS = s_QTS.to(dtype).float() if pick["scores"] == "rounded" else s_QTS
    if pick["scale"] == "scores":
        s_QTS = s_QTS * scale
        s_QTS = s_QTS.to(dtype).float() if pick["scores"] == "rounded" else s_QTS
    cap = seen.number("softcap", 0)
    if cap and pick["softcap"] == "given":
        s_QTS = cap * torch.tanh(s_QTS / cap)
    return s_QTS.masked_fill(~visible(seen, pick), -math.inf)


def visible(seen: Observation, pick: Mapping[str, str]) -> torch.Tensor:
    """bool [T, S]: which keys a query sees."""
    query_T1 = seen["position"][:, None].long()
    key_S = torch.arange(seen["k"].shape[0], device=query_T1.device)
    last_T1 = query_T1 + {"strict": -1, "next": 1}.get(pick["causal"], 0)
    mask_TS = key_S <= last_T1 if pick["causal"] != "none" else torch.ones_like(key_S <= last_T1)
    window = int(seen.number("window", 0))
    if window and pick["window"] != "none":
        mask_TS = mask_TS & (key_S > query_T1 - window - int(pick["window"] == "inclusive"))
    return mask_TS


def parts_of(keys: int, split: str) -> list[slice]:
    """Segments of the keys in ascending order."""
    name, _, number = split.partition(":")
    if name == "one":
        return [slice(0, keys)]
    width = -(-keys // int(number)) if name == "parts" else int(number)
    return [slice(start, min(start + width, keys)) for start in range(0, keys, width)]


def run(seen: Observation, pick: Mapping[str, str]) -> torch.Tensor:
    """[T, Q, V] in the activation dtype."""
    dtype = seen["q"].dtype
    s_QTS = scores(seen, pick)
    v_QSV = seen["v"].transpose(0, 1).float().repeat_interleave(s_QTS.shape[0] // seen["v"].shape[1], 0)
    sink = seen["sink"].float()[:, None, None].expand(-1, s_QTS.shape[1], 1) if uses_sink(seen, pick) else None
    if pick["softmax"] == "dtype" or pick["divide"] == "before":
        joined = s_QTS if sink is None else torch.cat([s_QTS, sink], -1)
        inner = dtype if pick["softmax"] == "dtype" else torch.float32
        p_QTS = exponential_softmax(joined.to(inner), pick["exponent"])[..., : s_QTS.shape[-1]].float()
        p_QTS = p_QTS.to(dtype).float() if pick["probability"] == "rounded" else p_QTS
        return (p_QTS @ v_QSV).transpose(0, 1).to(dtype)
    segments = parts_of(s_QTS.shape[-1], pick["split"])
    if pick["split"].startswith("online"):
        out = online(s_QTS, v_QSV, segments, sink, pick, dtype)
    else:
        out = merged(s_QTS, v_QSV, segments, sink, pick, dtype)
    return out.transpose(0, 1).to(dtype)


def uses_sink(seen: Observation, pick: Mapping[str, str]) -> bool:
    """Whether the sink takes part."""
    return seen.has("sink") and pick["sink"] == "given"


def exponential_softmax(x: torch.Tensor, how: str) -> torch.Tensor:
    """Softmax over the last axis in x's dtype."""
    if how == "exp":
        return F.softmax(x, -1)
    e = exponential(x - x.amax(-1, keepdim=True), how)
    return e / e.sum(-1, keepdim=True)


def piece(
    s: torch.Tensor,
    v: torch.Tensor,
    peak: torch.Tensor,
    pick: Mapping[str, str],
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum of exponentials [Q, T, 1] and unnormalised value product [Q, T, V] of one segment."""
    e = exponential(s - peak, pick["exponent"])
    total = last_sum(e, pick["sum"])
    e = e.to(dtype).float() if pick["probability"] == "rounded" else e
    return total, product(e, v, pick["value_product"])


def divided(out: torch.Tensor, total: torch.Tensor, pick: Mapping[str, str]) -> torch.Tensor:
    """Normalised at the end."""
    return out * (1 / total) if pick["divide"] == "reciprocal" else out / total


def finite(peak: torch.Tensor) -> torch.Tensor:
    """A maximum that can be subtracted: a row that sees nothing has -inf."""
    return peak.masked_fill(peak == -math.inf, 0.0)


def merged(
    s: torch.Tensor,
    v: torch.Tensor,
    segments: list[slice],
    sink: torch.Tensor | None,
    pick: Mapping[str, str],
    dtype: torch.dtype,
) -> torch.Tensor:
    """Each segment by itself, normalised, then merged by log-sum-exp in ascending order."""
    outs, sums = [], []
    for segment in segments:
        peak = finite(s[..., segment].amax(-1, keepdim=True))
        total, out = piece(s[..., segment], v[:, segment], peak, pick, dtype)
        if len(segments) == 1:
            total = total if sink is None else total + exponential(sink - peak, pick["exponent"])
            return divided(out, total, pick)
        outs.append(torch.where(total > 0, out / total, 0.0))
        sums.append(torch.where(total > 0, peak + torch.log(total), -math.inf))
    sums = sums if sink is None else [*sums, sink]
    top = torch.stack(sums).amax(0)
    weights = [exponential(one - top, pick["exponent"]) for one in sums]
    whole = weights[0]
    for weight in weights[1:]:
        whole = whole + weight
    result = outs[0] * weights[0]
    for out, weight in zip(outs[1:], weights[1:], strict=False):
        result = result + out * weight
    return result / whole


def online(
    s: torch.Tensor,
    v: torch.Tensor,
    segments: list[slice],
    sink: torch.Tensor | None,
    pick: Mapping[str, str],
    dtype: torch.dtype,
) -> torch.Tensor:
    """Running maximum: what was summed so far is rescaled whenever the maximum grows."""
    peak = s.new_full((*s.shape[:2], 1), -math.inf) if sink is None else sink
    total = s.new_zeros(*s.shape[:2], 1) if sink is None else s.new_ones(*s.shape[:2], 1)
    out = s.new_zeros(*s.shape[:2], v.shape[-1])
    for segment in segments:
        higher = torch.maximum(peak, s[..., segment].amax(-1, keepdim=True))
        keep = torch.exp(peak - finite(higher))
        more, part = piece(s[..., segment], v[:, segment], finite(higher), pick, dtype)
        total, out, peak = total * keep + more, out * keep + part, higher
    return divided(out, total, pick)


ATTENTION = Arithmetic("attention", ("q", "position", "pass"), settings, run, kernels, depth=2)
