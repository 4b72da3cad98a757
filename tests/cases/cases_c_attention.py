"""Attention and recurrent layers. Legend: T queries, S keys, Q query heads, D head dim."""

from __future__ import annotations

import math

import torch
from case_form import EQUAL, Case, named, random, word
from case_probe import alone, switched


def scores(q: torch.Tensor, k: torch.Tensor, *, window: int = 0, cap: float = 0.0) -> torch.Tensor:
    """Causal scores [Q, T, S]; the queries are the last ones of the sequence."""
    s = (q.transpose(0, 1).float() @ k.transpose(0, 1).float().transpose(1, 2)) * q.shape[-1] ** -0.5
    s = cap * torch.tanh(s / cap) if cap else s
    at = torch.arange(len(k) - len(q), len(k))[:, None]
    key = torch.arange(len(k))
    hidden = key > at
    hidden = hidden | (key <= at - window) if window else hidden
    return s.masked_fill(hidden, -math.inf)


def segments(s: torch.Tensor, v: torch.Tensor, edges: list[int]) -> torch.Tensor:
    """Key segments between edges, each normalised, merged by log-sum-exp in ascending order; [T, Q, D] float32."""
    outs, sums = [], []
    for a, b in zip([0, *edges], [*edges, s.shape[-1]], strict=True):
        peak = s[..., a:b].amax(-1, keepdim=True)
        peak = peak.masked_fill(peak == -math.inf, 0.0)
        e = torch.exp(s[..., a:b] - peak)
        total = e.sum(-1, keepdim=True)
        outs.append(torch.where(total > 0, (e @ v[:, a:b]) / total, 0.0))
        sums.append(torch.where(total > 0, peak + torch.log(total), -math.inf))
    if not edges:
        return outs[0].transpose(0, 1)
    top = torch.stack(sums).amax(0)
    weights = [torch.exp(one - top) for one in sums]
    whole, result = weights[0], outs[0] * weights[0]
    for out, weight in zip(outs[1:], weights[1:], strict=True):
        whole, result = whole + weight, result + out * weight
    return (result / whole).transpose(0, 1)


def sample(seed: int, queries: int = 16, keys: int = 600, heads: int = 2, dim: int = 64) -> dict[str, torch.Tensor]:
    r = random(seed)
    q, k, v = r(queries, heads, dim), r(keys, heads, dim), r(keys, heads, dim)
    return {"q": q, "k": k, "v": v, "position": torch.arange(keys - queries, keys)}


def attend(given: dict[str, torch.Tensor], edges: list[int], **how: float) -> torch.Tensor:
    v = given["v"].transpose(0, 1).float()
    return segments(scores(given["q"], given["k"], **how), v, edges).to(given["q"].dtype)  # type: ignore[arg-type]


def attention_word(given: dict[str, torch.Tensor], ours: torch.Tensor, theirs: torch.Tensor, **scalars: float) -> str:
    return named("attention", given, ours, theirs, scale=given["q"].shape[-1] ** -0.5, **scalars)


def kv_splits(parts: int) -> str:
    given = sample(31)
    edges = [600 // parts * i for i in range(1, parts)]
    return attention_word(given, attend(given, edges), attend(given, []))


def shared_prefix(on: bool) -> str:
    """Cascade: the shared prefix of 512 by itself, then merged; switched by the company in the batch."""
    given = sample(32)
    alone = attend(given, [])
    cause = switched(
        "order_batch",
        "512 shared prefix tokens switch the cascade on",
        (attend(given, [512] if on else []), alone),
        (alone, alone),
    )
    return EQUAL if cause.name == "unknown" and "no difference" in cause.why else word(cause)


def load_driven(pinned: bool) -> str:
    """Splits taken from the total work in the batch: a sequence's output follows its neighbours."""
    given = sample(33, queries=8)

    def run(rows_TQD: torch.Tensor) -> torch.Tensor:
        parts = 4 if pinned or len(rows_TQD) == 1 else 1
        edges = [600 // parts * i for i in range(1, parts)]
        out = []
        for row in rows_TQD:
            one = {**given, "q": row[None]}
            out.append(segments(scores(one["q"], one["k"]), one["v"].transpose(0, 1), edges))
        return torch.cat(out)

    return word(alone(run, given["q"]))


def cache_tile(pieces: bool) -> str:
    """A prefill walks the keys in tiles of what its queries leave of a cache, one row walks them in one."""
    given = sample(44, queries=8)

    def run(rows_TQD: torch.Tensor) -> torch.Tensor:
        edges = [] if pieces or len(rows_TQD) == 1 else [512]
        one_by_one = [segments(scores(row[None], given["k"]), given["v"].transpose(0, 1), edges) for row in rows_TQD]
        return torch.cat(one_by_one)

    return word(alone(run, given["q"]))


def chunk_edge(aligned: bool) -> str:
    """Prefill cut at key 300, or at a multiple of the segment of 64 that both sides use."""
    given = sample(34)
    base = [64 * i for i in range(1, 10)]
    edge = 320 if aligned else 300
    cut = sorted({*(e for e in base if e < edge), edge, *(e for e in range(edge + 64, 600, 64))})
    whole = attend(given, base)
    cause = switched(
        "order_batch", f"the prefill is cut at {edge}", (attend(given, cut), whole), (whole, attend(given, base))
    )
    return EQUAL if cause.name == "unknown" and "no difference" in cause.why else word(cause)


def probability_cast(low: bool) -> str:
    """Probabilities rounded to bfloat16 before the value product."""
    r = random(35)
    q, k, v = (r(n, 2, 64).bfloat16() for n in (32, 200, 200))
    given = {"q": q, "k": k, "v": v, "position": torch.arange(168, 200)}
    s = scores(q, k)
    e = torch.exp(s - s.amax(-1, keepdim=True))
    p = e.bfloat16().float() if low else e
    ours = ((p @ v.transpose(0, 1).float()) / e.sum(-1, keepdim=True)).transpose(0, 1).bfloat16()
    return attention_word(given, ours, attend(given, []))


def sink(dropped: bool) -> str:
    """One extra logit per head takes mass from every row."""
    given = sample(36, keys=100)
    given["sink"] = random(37)(2)
    s = scores(given["q"], given["k"])
    peak = s.amax(-1, keepdim=True)
    e = torch.exp(s - peak)
    product = e @ given["v"].transpose(0, 1)
    full = e.sum(-1, keepdim=True) + torch.exp(given["sink"][:, None, None] - peak)
    ours = (product / (e.sum(-1, keepdim=True) if dropped else full)).transpose(0, 1)
    return attention_word(given, ours, (product / full).transpose(0, 1))


def window(size: int) -> str:
    given = sample(38, queries=64, keys=64)
    return attention_word(given, attend(given, [], window=size), attend(given, [], window=16), window=16)


def cap(value: float) -> str:
    given = sample(39, keys=100)
    given["q"] = given["q"] * 30
    return attention_word(given, attend(given, [], cap=value), attend(given, [], cap=50.0), softcap=50.0)


def key_too_many() -> str:
    given = sample(40, queries=64, keys=65)
    given["position"] = torch.arange(64)
    s = scores(given["q"], given["k"])
    hidden = torch.arange(65) > torch.arange(64)[:, None]
    right = segments(s.masked_fill(hidden, -math.inf), given["v"].transpose(0, 1), [])
    return attention_word(given, segments(s, given["v"].transpose(0, 1), []), right)


def absorbed(same: bool) -> str:
    """MLA: the latent product reassociated; the same in real numbers only."""
    r = random(41)
    c, w, q = r(200, 64).bfloat16(), r(64, 128).bfloat16(), r(1, 128).bfloat16()
    materialised = (q @ (c @ w).t()).float()
    other = materialised if same else ((q @ w.t()) @ c.t()).float()
    cause = switched(
        "path",
        "decode absorbs the up-projection into the query",
        (other, materialised),
        (materialised, materialised.clone()),
    )
    return EQUAL if "no difference" in cause.why else word(cause)


def scan(x: torch.Tensor, decay: torch.Tensor, chunk: int) -> torch.Tensor:
    """h = decay h + x; in chunks the carried state is added to a local scan."""
    out, state = [], torch.zeros(x.shape[1])
    for start in range(0, len(x), chunk):
        local, inside = torch.zeros(x.shape[1]), []
        for row in x[start : start + chunk]:
            local = decay * local + row
            inside.append(local)
        power = decay ** torch.arange(1, len(inside) + 1)[:, None]
        block = torch.stack(inside) + power * state
        out.append(block)
        state = block[-1]
    return torch.cat(out)


def recurrent(chunk: int) -> str:
    """Prefill scans in chunks, decode steps one by one."""
    x, decay = random(42)(64, 32), torch.tensor(0.9)
    steps = scan(x, decay, 1)
    cause = switched(
        "path", "prefill scans in chunks, decode steps", (scan(x, decay, chunk), steps), (steps, scan(x, decay, 1))
    )
    return EQUAL if "no difference" in cause.why else word(cause)


def stale_rows(leak: bool) -> str:
    """Padding rows of a graph reach a shared statistic."""
    x = random(43)(8, 32)
    run = (lambda rows: rows / rows.abs().amax()) if leak else (lambda rows: rows / rows.abs().amax(-1, keepdim=True))
    return word(alone(run, x, padding=(5, 6, 7)))


def raced(fixed: bool) -> str:
    """The order of a sum changes from call to call."""
    parts, count = random(44)(16, 1, 32), iter(range(1000))

    def run(rows: torch.Tensor) -> torch.Tensor:
        order = torch.arange(16) if fixed else torch.randperm(16, generator=torch.Generator().manual_seed(next(count)))
        total = torch.zeros_like(rows)
        for i in order.tolist():
            total = total + rows * parts[i]
        return total

    return word(alone(run, random(45)(64, 32)))


def raced_in_company() -> str:
    """A race must be called a race, even by the probe that looks for company."""
    parts, count = random(44)(16, 1, 32), iter(range(1000))

    def run(rows: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(rows)
        for i in torch.randperm(16, generator=torch.Generator().manual_seed(next(count))).tolist():
            total = total + rows * parts[i]
        return total

    return word(alone(run, random(45)(6, 32)))


CASES = [
    Case(
        "kv-splits",
        "attention",
        "flash-attention #1897, PR #2450",
        "keys cut into four parts and merged",
        "order_static",
        lambda: kv_splits(4),
        "one part",
        EQUAL,
        lambda: kv_splits(1),
    ),
    Case(
        "kv-splits-by-load",
        "attention",
        "flash-attention #1897, vllm PR #19152",
        "a sequence's output follows its neighbours",
        "order_batch",
        lambda: load_driven(False),
        "the number of parts pinned",
        EQUAL,
        lambda: load_driven(True),
    ),
    Case(
        "solo-not-race",
        "attention",
        "vllm #53257",
        "the disagreement rises with load, a repeat is equal",
        "order_batch",
        lambda: load_driven(False),
        "the order changes from call to call",
        "race",
        raced_in_company,
    ),
    Case(
        "shared-prefix",
        "attention",
        "vllm PRs #32561, #36318",
        "prompts fail when many share a prefix",
        "order_batch",
        lambda: shared_prefix(True),
        "no shared prefix",
        EQUAL,
        lambda: shared_prefix(False),
    ),
    Case(
        "cache-tile",
        "attention",
        "vLLM's CPU attention (docs/results/gate-cpu.md)",
        "decode and prefill agree up to some hundred tokens, then no more",
        "order_batch",
        lambda: cache_tile(False),
        "the queries computed in pieces of one tile",
        EQUAL,
        lambda: cache_tile(True),
    ),
    Case(
        "chunk-edge",
        "attention",
        "sglang PRs #28063, #10721",
        "the answer depends on how the prefill was cut",
        "order_batch",
        lambda: chunk_edge(False),
        "the edge aligned to the segments",
        EQUAL,
        lambda: chunk_edge(True),
    ),
    Case(
        "probability-cast",
        "attention",
        "FlashAttention against eager attention",
        "probabilities are rounded before the value product",
        "cast",
        lambda: probability_cast(True),
        "probabilities in float32",
        EQUAL,
        lambda: probability_cast(False),
    ),
    Case(
        "sink",
        "attention",
        "miles PR #1500, slime PR #996",
        "the sink term is dropped by one back end",
        "formula",
        lambda: sink(True),
        "the sink on both sides",
        EQUAL,
        lambda: sink(False),
    ),
    Case(
        "window-edge",
        "attention",
        "transformers #29623, vllm #3385",
        "long rows differ, short rows are equal",
        "formula",
        lambda: window(17),
        "the same window",
        EQUAL,
        lambda: window(16),
    ),
    Case(
        "softcap",
        "attention",
        "vllm-metal #665",
        "soft-capped scores drift",
        "formula",
        lambda: cap(0.0),
        "the cap on both sides",
        EQUAL,
        lambda: cap(50.0),
    ),
    Case(
        "causal-offset",
        "attention",
        "bottom-right against top-left masks",
        "each query sees one key too many",
        "formula",
        key_too_many,
        "keys in four parts instead",
        "order_static",
        lambda: kv_splits(4),
    ),
    Case(
        "mla-absorbed",
        "attention",
        "flashinfer PR #551, sglang PR #2349",
        "prefill and decode use another algebra",
        "path",
        lambda: absorbed(False),
        "one form for both",
        EQUAL,
        lambda: absorbed(True),
    ),
    Case(
        "recurrent-scan",
        "recurrent",
        "vllm #55524, prime-rl PR #3214",
        "decode differs from prefill from token 0 on",
        "path",
        lambda: recurrent(16),
        "chunks of one",
        EQUAL,
        lambda: recurrent(1),
    ),
    Case(
        "padding-leak",
        "recurrent",
        "mamba #783, vllm #41841",
        "padding rows change real rows",
        "state",
        lambda: stale_rows(True),
        "statistics per row",
        EQUAL,
        lambda: stale_rows(False),
    ),
    Case(
        "race",
        "recurrent",
        "flash-linear-attention #945, triton #9871",
        "the same input twice, other output",
        "race",
        lambda: raced(False),
        "a fixed order",
        EQUAL,
        lambda: raced(True),
    ),
]
