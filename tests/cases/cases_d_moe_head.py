"""Collectives, experts, activations, low precision, head and logprob.

Legend: T rows, E experts, F features, V vocabulary, P parts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from case_form import EQUAL, Case, named, random, word
from case_probe import alone

from samebits.tools.diff.causes.moe import dense


def summed(parts: list[torch.Tensor], hop: bool = False) -> torch.Tensor:
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
        total = total.to(part.dtype).float() if hop else total
    return total


def ring(start: int) -> str:
    parts = random(51)(4, 32, 256)
    turned = [parts[(start + i) % 4] for i in range(4)]
    return named("reduce", {"parts": parts}, summed(turned), summed(list(parts)))


def owner(rotating: bool) -> str:
    """Reduce-scatter: the order of a row's sum starts after the rank that owns it."""
    parts = random(52)(4, 64, 128)
    rows = [summed([parts[(i // 16 + 1 + k) % 4, i] for k in range(4)]) for i in range(64)]
    plain = summed(list(parts))
    return named("reduce", {"parts": parts}, torch.stack(rows) if rotating else plain, plain)


def tree(linear: bool) -> str:
    parts = random(53)(4, 64, 128)
    other = summed(list(parts)) if linear else (parts[0] + parts[2]) + (parts[1] + parts[3])
    return named("reduce", {"parts": parts}, other, summed(list(parts)))


def hops(rounded: bool) -> str:
    parts = random(54)(4, 32, 256).bfloat16()
    return named(
        "reduce", {"parts": parts}, summed(list(parts), hop=rounded).bfloat16(), summed(list(parts)).bfloat16()
    )


def scattered(fixed: bool) -> str:
    """index_add over rows in an order that changes from call to call, as atomics do."""
    count = iter(range(100))

    def run(rows: torch.Tensor) -> torch.Tensor:
        order = torch.arange(64) if fixed else torch.randperm(64, generator=torch.Generator().manual_seed(next(count)))
        out = torch.zeros(8, 16)
        for i in order.tolist():
            out[i % 8] += rows[i]
        return out

    return word(alone(run, random(55)(64, 16)))


def combine(descending: bool) -> str:
    """Results of four experts added in another order."""
    r = random(56)
    x, w13, w2 = r(32, 32).bfloat16(), 0.3 * r(8, 64, 32).bfloat16(), 0.3 * r(8, 32, 32).bfloat16()
    scores = r(32, 8)
    weights, ids = scores.softmax(-1).topk(4, dim=-1)

    def run(reverse: bool) -> torch.Tensor:
        out = []
        for row, ws, es in zip(x, weights, ids, strict=True):
            total: torch.Tensor | None = None
            for e in sorted(es.tolist(), reverse=reverse):
                gate, up = F.linear(row.float(), w13[e].float()).bfloat16().chunk(2, -1)
                y = F.linear((F.silu(gate) * up).float(), w2[e].float()).bfloat16().float()
                y = y * ws[es == e]
                total = y if total is None else (total.bfloat16().float() + y)
            assert total is not None
            out.append(total.bfloat16())
        return torch.stack(out)

    inputs = {"x": x, "w13": w13, "w2": w2, "weights": weights, "ids": ids}
    return named("experts", inputs, run(descending), run(False))


def router(logits: torch.Tensor, k: int, ours: torch.Tensor, theirs: torch.Tensor, **scalars: float | bool) -> str:
    return named("router", {"logits": logits}, ours, theirs, top_k=k, **scalars)


def route(logits: torch.Tensor, k: int, renormalise: bool = True) -> torch.Tensor:
    weights, ids = logits.float().softmax(-1).topk(k, dim=-1)
    weights = weights / weights.sum(-1, keepdim=True) if renormalise else weights
    return dense(weights, ids, logits.shape[-1])


def router_bf16(low: bool) -> str:
    """Logits rounded to bfloat16: near ties choose other experts."""
    logits = random(57)(512, 32)
    return router(logits, 4, route(logits.bfloat16().float() if low else logits, 4), route(logits, 4))


def router_renorm(missing: bool) -> str:
    logits = random(58)(256, 16)
    return router(logits, 2, route(logits, 2, renormalise=not missing), route(logits, 2))


def router_order(swapped: bool) -> str:
    logits = random(59)(256, 16)
    top, ids = logits.topk(4, dim=-1)
    return router(logits, 4, dense(top.softmax(-1), ids, 16) if swapped else route(logits, 4), route(logits, 4))


def router_tie(high: bool) -> str:
    """Rounded probabilities tie; one side takes the lower expert, the other the higher."""
    logits = (random(60)(256, 16) * 2).round() / 2
    p = logits.softmax(-1)
    low_ids = p.sort(dim=-1, descending=True, stable=True).indices[:, :2]
    high_ids = 15 - p.flip(-1).sort(dim=-1, descending=True, stable=True).indices[:, :2]

    def weights(ids: torch.Tensor) -> torch.Tensor:
        own = p.gather(-1, ids)
        return dense(own / own.sum(-1, keepdim=True), ids, 16)

    return router(logits, 2, weights(high_ids if high else low_ids), weights(low_ids))


def router_scale(skipped: bool) -> str:
    logits = random(61)(256, 16)
    return router(logits, 2, route(logits, 2) * (1.0 if skipped else 2.5), route(logits, 2) * 2.5, scale=2.5)


def silu(rounded: bool) -> str:
    r = random(62)
    gate, up = r(64, 512).bfloat16(), r(64, 512).bfloat16()
    wide = (F.silu(gate.float()) * up.float()).bfloat16()
    return named(
        "activation", {"gate": gate, "up": up}, wide if rounded else F.silu(gate) * up, F.silu(gate) * up, name="silu"
    )


def fast_silu(fast: bool) -> str:
    r = random(63)
    gate = r(64, 512)
    return named(
        "activation", {"gate": gate}, gate / (1 + torch.exp(-gate)) if fast else F.silu(gate), F.silu(gate), name="silu"
    )


def gelu(tanh: bool) -> str:
    gate = random(64)(64, 512).bfloat16()
    other = F.gelu(gate.float(), approximate="tanh" if tanh else "none").bfloat16()
    return named("activation", {"gate": gate}, other, F.gelu(gate.float()).bfloat16(), name="gelu")


def fp8_scale(per_row: bool) -> str:
    """One dynamic scale per tensor: a row's code follows what the padding holds."""
    x = random(65)(8, 64)
    x[5] *= 50

    def run(rows: torch.Tensor) -> torch.Tensor:
        scale = rows.abs().amax(-1, keepdim=True) / 448 if per_row else rows.abs().amax() / 448
        return (rows / scale).to(torch.float8_e4m3fn).float() * scale

    return word(alone(run, x, padding=(5, 6, 7)))


def head(fault: str) -> str:
    """bfloat16 head upcast, or a float32 head."""
    r = random(66)
    h, w = r(32, 256).bfloat16(), (0.1 * r(512, 256)).bfloat16()
    wide = F.linear(h.float(), w.float())
    return named("linear", {"x": h, "weight": w}, wide.bfloat16().float() if fault else wide, wide)


def logits(seed: int, rows: int = 128, size: int = 4096) -> tuple[torch.Tensor, torch.Tensor]:
    r = random(seed)
    return 3 * r(rows, size), torch.randint(0, size, (rows,), generator=torch.Generator().manual_seed(seed))


def logprob(how: str, temperature: float = 1.0, padded: int = 0) -> str:
    z, token = logits(67)
    at = token[:, None]
    stock = (z / temperature).log_softmax(-1).gather(1, at)[:, 0]
    full = F.pad(z, (0, padded))
    own = z.gather(1, at)[:, 0]
    forms = {
        "stock": lambda: stock,
        "low": lambda: z.bfloat16().log_softmax(-1).gather(1, at)[:, 0].float(),
        "rounded": lambda: z.bfloat16().float().log_softmax(-1).gather(1, at)[:, 0],
        "log_of_softmax": lambda: z.softmax(-1).log().gather(1, at)[:, 0],
        "chunks": lambda: own - torch.stack([c.logsumexp(-1) for c in z.split(1024, -1)], -1).logsumexp(-1),
        "padded": lambda: full.log_softmax(-1).gather(1, at)[:, 0],
        "raw": lambda: z.log_softmax(-1).gather(1, at)[:, 0],
        "inverse": lambda: (z * (1.0 / temperature)).log_softmax(-1).gather(1, at)[:, 0],
    }
    return named(
        "logprob", {"logits": full, "token": token}, forms[how](), stock, temperature=temperature, vocabulary=z.shape[1]
    )


CASES = [
    Case(
        "all-reduce-ring",
        "collective",
        "vllm #50136, PR #50505",
        "the same request gets another sum in another batch",
        "order_static",
        lambda: ring(1),
        "the ring starts at the same rank",
        EQUAL,
        lambda: ring(0),
    ),
    Case(
        "reduce-scatter-owner",
        "collective",
        "vllm #56370, PR #56377",
        "the order rotates with the owner of the chunk",
        "order_static",
        lambda: owner(True),
        "one order for all rows",
        EQUAL,
        lambda: owner(False),
    ),
    Case(
        "all-reduce-tree",
        "collective",
        "torchtitan PR #2994",
        "trainer and generator differ in invariant mode",
        "order_static",
        lambda: tree(False),
        "linear on both sides",
        EQUAL,
        lambda: tree(True),
    ),
    Case(
        "all-reduce-hops",
        "collective",
        "rocm-systems #11661",
        "a ring rounds to bfloat16 at each hop",
        "cast",
        lambda: hops(True),
        "float32 hops",
        EQUAL,
        lambda: hops(False),
    ),
    Case(
        "index-add",
        "experts",
        "transformers PR #43362, torchtitan PR #1974",
        "the same greedy input, other output",
        "race",
        lambda: scattered(False),
        "rows in a fixed order",
        EQUAL,
        lambda: scattered(True),
    ),
    Case(
        "expert-combine",
        "experts",
        "vllm PR #45683",
        "expert results are added in another order",
        "order_static",
        lambda: combine(True),
        "the same order",
        EQUAL,
        lambda: combine(False),
    ),
    Case(
        "router-bf16",
        "router",
        "prime-rl PR #2952, sglang #38695",
        "whole tokens jump, most are untouched",
        "precision",
        lambda: router_bf16(True),
        "float32 logits",
        EQUAL,
        lambda: router_bf16(False),
    ),
    Case(
        "router-tie",
        "router",
        "AstrAI PR #57",
        "rollout and recompute pick other experts at ties",
        "order_static",
        lambda: router_tie(True),
        "one rule for ties",
        EQUAL,
        lambda: router_tie(False),
    ),
    Case(
        "router-renormalise",
        "router",
        "litgpt #2013, torchtitan #1448",
        "weights are not renormalised on one side",
        "formula",
        lambda: router_renorm(True),
        "renormalised on both",
        EQUAL,
        lambda: router_renorm(False),
    ),
    Case(
        "router-softmax-order",
        "router",
        "litgpt #1286",
        "softmax before or after the top k",
        "order_static",
        lambda: router_order(True),
        "before, on both",
        EQUAL,
        lambda: router_order(False),
    ),
    Case(
        "router-scale",
        "router",
        "sglang-jax PR #1282, sglang PR #31449",
        "the routed scale is skipped",
        "formula",
        lambda: router_scale(True),
        "scaled on both",
        EQUAL,
        lambda: router_scale(False),
    ),
    Case(
        "silu-cast",
        "activation",
        "sglang PR #29382, pytorch #181568",
        "silu stays in float32 until after the product",
        "cast",
        lambda: silu(True),
        "rounded on both",
        EQUAL,
        lambda: silu(False),
    ),
    Case(
        "silu-fast",
        "activation",
        "sglang PR #29382, ninfer PR #194",
        "another form of the exponential",
        "precision",
        lambda: fast_silu(True),
        "rounding instead",
        "cast",
        lambda: silu(True),
    ),
    Case(
        "gelu-tanh",
        "activation",
        "text-embeddings-inference PR #753",
        "a steady small bias in each layer",
        "formula",
        lambda: gelu(True),
        "erf on both",
        EQUAL,
        lambda: gelu(False),
    ),
    Case(
        "fp8-scale",
        "low precision",
        "vllm PR #54683",
        "a row's fp8 code depends on the others, padding among them",
        "state",
        lambda: fp8_scale(False),
        "one scale per row",
        EQUAL,
        lambda: fp8_scale(True),
    ),
    Case(
        "bf16-head",
        "head",
        "sglang #33627, prime-rl PR #2438",
        "head output rounded to bfloat16, then widened",
        "cast",
        lambda: head("bf16"),
        "float32 on both",
        EQUAL,
        lambda: head(""),
    ),
    Case(
        "bf16-logits",
        "logprob",
        "TRL PR #4303, vllm PR #48390",
        "logits rounded before the logprob",
        "cast",
        lambda: logprob("rounded"),
        "not rounded",
        EQUAL,
        lambda: logprob("stock"),
    ),
    Case(
        "bf16-log-softmax",
        "logprob",
        "TRL PR #7077, torchforge PR #237",
        "log_softmax in bfloat16",
        "precision",
        lambda: logprob("low"),
        "only the logits rounded",
        "cast",
        lambda: logprob("rounded"),
    ),
    Case(
        "log-of-softmax",
        "logprob",
        "torchtitan bitwise guide",
        "the last 1e-7 that will not go",
        "order_static",
        lambda: logprob("log_of_softmax"),
        "log_softmax on both",
        EQUAL,
        lambda: logprob("stock"),
    ),
    Case(
        "vocabulary-chunks",
        "logprob",
        "NeMo-RL PR #3208",
        "the vocabulary is summed in chunks",
        "order_static",
        lambda: logprob("chunks"),
        "one chunk",
        EQUAL,
        lambda: logprob("stock"),
    ),
    Case(
        "padded-vocabulary",
        "logprob",
        "unsloth PR #10616, Megatron-Bridge PR #2602",
        "logprob lower on one side",
        "formula",
        lambda: logprob("padded", padded=128),
        "true vocabulary on both",
        EQUAL,
        lambda: logprob("stock", padded=128),
    ),
    Case(
        "raw-logprob",
        "logprob",
        "prime-rl PR #697, TRL #4159",
        "temperature not applied on one side",
        "data",
        lambda: logprob("raw", temperature=0.7),
        "divided on both",
        EQUAL,
        lambda: logprob("stock", temperature=0.7),
    ),
    Case(
        "inverse-temperature",
        "logprob",
        "sampler kernels",
        "multiplied by 1/T instead of divided by T",
        "cast",
        lambda: logprob("inverse", temperature=0.7),
        "temperature not applied",
        "data",
        lambda: logprob("raw", temperature=0.7),
    ),
]
