"""Rows of paged attention for operators.py: against vLLM's FlashAttention 3 with free splits; 32 query heads, 8 key
heads, bf16."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fa3
import torch
from timing import interleaved_us

from samebits.kernels.ops.attention.dispatch import run

HEADS, KEY_HEADS, PAGE = 32, 8, 16
DECODE = (
    *((1, n) for n in (1024, 2048, 4096, 8192, 16384, 32768)),
    *((8, n) for n in (1024, 2048, 4096, 8192, 16384, 32768)),
    *((b, n) for b in (32, 64, 128, 256) for n in (1024, 2048, 4096, 8192) if b * n <= 1 << 20),
)
PREFILL = (2048, 4096, 8192, 16384)
CACHE_BYTES = 5 << 30


class Cache:
    """Keys and values of random data, and tables that visit it in random order, so that L2 is cold."""

    def __init__(self, head: int) -> None:
        self.head, self.pages = head, CACHE_BYTES // 2 // (PAGE * KEY_HEADS * head * 2)
        self.k, self.v = (
            torch.randn(self.pages, PAGE, KEY_HEADS, head, device="cuda", dtype=torch.bfloat16) for _ in range(2)
        )

    def tables(self, batch: int, length: int, most: int) -> torch.Tensor:
        """[copies, batch, pages] int32."""
        each = -(-length // PAGE)
        copies = max(1, min(most, self.pages // (batch * each)))
        order = torch.randperm(self.pages, device="cuda").int()
        return order[: copies * batch * each].view(copies, batch, each).contiguous()


def measure(
    cache: Cache, batch: int, query: int, length: int, has_fa3: bool, copies: int, replays: int
) -> dict[str, float]:
    """Microseconds of ours and of FlashAttention 3, free and with one split, for equal sequences."""
    tokens = batch * query
    q = torch.randn(tokens, HEADS, cache.head, device="cuda").bfloat16()
    cu = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * query
    lens = torch.full((batch,), length, dtype=torch.int32, device="cuda")
    tables, scale = cache.tables(batch, length, copies), cache.head**-0.5
    arms = {"ours": [partial(run, q, cache.k, cache.v, t, cu, lens, query, length, scale) for t in tables]}
    if has_fa3:
        for name, splits in (("free", 0), ("one split", 1)):
            call = fa3.Call(q, KEY_HEADS, cu, lens, (query, length), PAGE, splits)
            arms[name] = [partial(call, q, cache.k, cache.v, t, scale) for t in tables]
    return interleaved_us(arms, rounds=3, replays=replays)


def rows(per_us: tuple[float, float], library: Path | None) -> Iterator[dict[str, Any]]:
    """Decode and prefill rows. Without FlashAttention 3 there is no ratio, and the rows say so by leaving it out."""
    has_fa3 = fa3.load(library)
    for head in (128, 64):
        cache = Cache(head)
        grid = [(b, 1, n) for b, n in DECODE] + [(1, n, n) for n in PREFILL] + [(8, 2048, 2048)]
        for batch, query, length in grid if head == 128 else [(1, 1, 8192), (32, 1, 4096), (1, 8192, 8192)]:
            times = measure(cache, batch, query, length, has_fa3, 12 if query == 1 else 2, 3)
            if query == 1:
                floor = batch * length * KEY_HEADS * head * 4 / per_us[0]
            else:
                floor = 4 * batch * HEADS * head * query * length / 2 / per_us[1]
            kind = (
                ("decode" if query == 1 else "prefill")
                + ("" if head == 128 else " head 64")
                + ("" if query == 1 or batch == 1 else " batch 8")
            )
            row: dict[str, Any] = {
                "op": kind,
                "batch": batch,
                "length": length,
                "us": times["ours"],
                "floor_ratio": floor / times["ours"],
            }
            if has_fa3:
                row |= {
                    "alternative_us": times["free"],
                    "ratio": times["free"] / times["ours"],
                    "one_split_us": times["one split"],
                }
            yield row
        del cache
        torch.cuda.empty_cache()
