"""Matrix products and other sums whose order follows the batch. Legend: M rows, K inputs, N outputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from case_form import EQUAL, Case, named, random, word
from case_probe import alone, drivers


def segmented(x_MK: torch.Tensor, w_NK: torch.Tensor, segments: int) -> torch.Tensor:
    """Split-K: float32 partial sums of equal segments, added in ascending order."""
    total = torch.zeros(x_MK.shape[0], w_NK.shape[0])
    for x, w in zip(x_MK.float().chunk(segments, 1), w_NK.float().chunk(segments, 1), strict=True):
        total = total + x @ w.t()
    return total


def by_rows(x_MK: torch.Tensor, w_NK: torch.Tensor) -> torch.Tensor:
    """Splits K eight ways for a single row and not otherwise; rows one by one, so that only the split moves."""
    segments = 8 if len(x_MK) == 1 else 1
    return torch.cat([segmented(row[None], w_NK, segments) for row in x_MK])


def split_by_batch(pinned: bool) -> str:
    r = random(1)
    x, w = r(16, 2048), r(256, 2048)
    run = (
        (lambda rows: torch.cat([segmented(row[None], w, 8) for row in rows]))
        if pinned
        else (lambda rows: by_rows(rows, w))
    )
    return word(alone(run, x))


def driven_by_size() -> str:
    """Order follows the batch size; the row's place in the batch moves nothing."""
    r = random(2)
    x, w = r(16, 1024), r(64, 1024)
    by_size, by_place = drivers(lambda rows: by_rows(rows, w), x, (1, 2, 8))
    return "order_batch" if by_size == {1: False, 2: True, 8: True} and not by_place else f"{by_size} {by_place}"


def driven_by_place() -> str:
    """Another fault: every row has its own split, by its place."""
    r = random(2)
    x, w = r(16, 1024), r(64, 1024)
    run = lambda rows: torch.cat([segmented(row[None], w, 1 + i % 2 * 7) for i, row in enumerate(rows)])  # noqa: E731
    by_size, by_place = drivers(run, x, (1, 2, 8))
    return "place" if all(by_size.values()) and by_place else f"{by_size} {by_place}"


def tf32(cut: bool) -> str:
    """Odd integers above 2,048 have no TF32 form: the sum of a large arange comes back even."""
    r = random(3)
    x, w = torch.arange(1.0, 4097.0).repeat(4, 1), r(32, 4096)
    low = (
        (x.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32),
        (w.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32),
    )
    other = F.linear(*low) if cut else F.linear(x, w)
    return named("linear", {"x": x, "weight": w}, other, F.linear(x, w))


def unproven(scattered: bool) -> str:
    """K summed in an order that nothing published uses: what cannot be reproduced stays unknown."""
    r = random(4)
    x, w = r(32, 512), r(64, 512)
    order = torch.randperm(512, generator=torch.Generator().manual_seed(4)) if scattered else torch.arange(512)
    ours, theirs = segmented(x[:, order], w[:, order], 16), segmented(x, w, 4)
    return named("linear", {"x": x, "weight": w}, ours, theirs)


def few(rows: int) -> str:
    """Two K blocks behind a bfloat16 output: a handful of elements is no proof."""
    r = random(4)
    x, w = r(64, 512).bfloat16(), r(256, 512).bfloat16()
    ours, theirs = (segmented(x, w, 512 // width).bfloat16() for width in (32, 128))
    first = int((ours != theirs).any(-1).nonzero()[0, 0])
    some = slice(first, first + 1) if rows == 1 else slice(0, rows)
    return named("linear", {"x": x[some], "weight": w}, ours[some], theirs[some])


def bias(late: bool) -> str:
    r = random(5)
    x, w, b = r(32, 512).bfloat16(), r(256, 512).bfloat16(), r(256).bfloat16()
    whole = x.float() @ w.float().t()
    ours = (whole + b.float()).bfloat16()
    return named("linear", {"x": x, "weight": w, "bias": b}, ours, whole.bfloat16() + b if late else ours)


def no_bias() -> str:
    r = random(5)
    x, w, b = r(32, 512).bfloat16(), r(256, 512).bfloat16(), r(256).bfloat16()
    whole = x.float() @ w.float().t()
    return named("linear", {"x": x, "weight": w, "bias": b}, (whole + b.float()).bfloat16(), whole.bfloat16())


def bucket(padded_both: bool) -> str:
    """The kernel class follows the row count after padding to a multiple of eight; only one side pads."""
    r = random(6)
    x, w = r(5, 1024), r(64, 1024)

    def run(rows: torch.Tensor) -> torch.Tensor:
        count = -(-len(rows) // 8) * 8 if padded_both else len(rows)
        return torch.cat([segmented(row[None], w, 1 if count >= 4 else 4) for row in rows])

    return word(alone(run, x))


def micro_batch(fixed: bool) -> str:
    """Two micro-batch sizes of one trainer."""
    r = random(7)
    x, w = r(8, 1024), r(64, 1024)
    run = lambda rows: torch.cat([segmented(row[None], w, 2 if fixed or len(rows) > 4 else 6) for row in rows])  # noqa: E731
    return word(alone(run, x))


def partial_dtype(low: bool) -> str:
    """Split-K partial sums written in bfloat16."""
    r = random(8)
    x, w = r(32, 1024).bfloat16(), r(128, 1024).bfloat16()
    parts = [a.float() @ b.float().t() for a, b in zip(x.chunk(4, 1), w.chunk(4, 1), strict=True)]
    parts = [part.bfloat16().float() for part in parts] if low else parts
    ours = ((parts[0] + parts[1]) + parts[2]) + parts[3]
    return named("linear", {"x": x, "weight": w}, ours.bfloat16(), (x.float() @ w.float().t()).bfloat16())


CASES = [
    Case(
        "split-k-by-batch",
        "matmul",
        "pegainfer #414",
        "the same prompt gives another first token when it shares a batch",
        "order_batch",
        lambda: split_by_batch(False),
        "the split pinned",
        EQUAL,
        lambda: split_by_batch(True),
    ),
    Case(
        "size-not-place",
        "matmul",
        "TransformerEngine #2986",
        "an anchor row differs from its M=1 result for some M",
        "order_batch",
        driven_by_size,
        "the split follows the place in the batch instead",
        "place",
        driven_by_place,
    ),
    Case(
        "tf32-product",
        "matmul",
        "batch_invariant_ops #23",
        "a float32 product is less exact than the stock one",
        "precision",
        lambda: tf32(True),
        "factors not cut",
        EQUAL,
        lambda: tf32(False),
    ),
    Case(
        "order-unproven",
        "matmul",
        "batch_invariant_ops #6, open-instruct #1473",
        "two configurations differ, nobody knows why",
        "unknown",
        lambda: unproven(True),
        "an order that can be reproduced",
        "order_static",
        lambda: unproven(False),
    ),
    Case(
        "too-little-evidence",
        "matmul",
        "batch_invariant_ops #6",
        "one element of one bfloat16 row differs",
        "unknown",
        lambda: few(1),
        "all 64 rows",
        "order_static",
        lambda: few(64),
    ),
    Case(
        "bias-epilogue",
        "matmul",
        "pytorch PR #180875, vllm PR #52231",
        "a linear with bias disagrees between two library paths",
        "cast",
        lambda: bias(True),
        "the bias left out instead",
        "formula",
        no_bias,
    ),
    Case(
        "bias-equal",
        "matmul",
        "pytorch PR #180875",
        "the same linear with the bias in the accumulator on both sides",
        EQUAL,
        lambda: bias(False),
        "the bias added after rounding",
        "cast",
        lambda: bias(True),
    ),
    Case(
        "micro-batch",
        "matmul",
        "verl #6280",
        "old and new logprob of one trainer differ",
        "order_batch",
        lambda: micro_batch(False),
        "one kernel for both sizes",
        EQUAL,
        lambda: micro_batch(True),
    ),
    Case(
        "padding-bucket",
        "matmul",
        "NeMo-RL PR #3208",
        "graph buckets pad one side only",
        "order_batch",
        lambda: bucket(False),
        "both padded",
        EQUAL,
        lambda: bucket(True),
    ),
    Case(
        "split-k-bf16-partials",
        "matmul",
        "pegainfer #414",
        "split-K partial sums are kept in bfloat16",
        "cast",
        lambda: partial_dtype(True),
        "float32 partial sums",
        EQUAL,
        lambda: partial_dtype(False),
    ),
]
