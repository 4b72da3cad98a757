"""Times of the operators on this GPU: python benchmarks/operators.py --out FILE [--only NAME ...] [--fa3 LIBRARY]

Per operator and shape: microseconds, the ratio to the fastest non-invariant alternative (above 1: ours is faster)
and to the floor.
CUDA graphs, inputs rotated so that L2 is cold, arms interleaved, median of all replays.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import times_attention
import times_linear
import times_rows
import torch
from timing import median_us

Row = dict[str, Any]
PARTS = ("attention", "linear", "rows")
ROW_OPERATORS = ("rms_norm", "silu_mul", "rotary", "normed_rotary", "logprob")


def ceilings() -> tuple[float, float]:
    """(bytes per us, flops per us) measured now: the best of copies of several sizes, a large bf16 product."""
    copies = []
    for count in (1 << 27, 1 << 28, 1 << 29):
        source = torch.randn(count, device="cuda")
        target = torch.empty_like(source)
        copies.append(2 * 4 * count / median_us([partial(target.copy_, source)] * 3, 5))
    a = torch.randn(8192, 8192, device="cuda").bfloat16()
    product = median_us([partial(torch.mm, a, a)] * 3, 5)
    return max(copies), 2 * 8192**3 / product


def mean(rows: list[Row]) -> float | None:
    """Geometric mean of the ratios; rows without an alternative have none."""
    ratios = [r["ratio"] for r in rows if "ratio" in r]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def summary(rows: list[Row]) -> dict[str, Any]:
    """The fields of docs/results/kernels.json that these rows give."""
    linear = [r for r in rows if r["op"] == "linear"]
    decode = [r for r in rows if r["op"] == "decode"]
    full = [r for r in decode if r["batch"] >= 32]
    small = [r for r in decode if r["batch"] < 32]
    norms = [r for r in rows if r["op"] in ROW_OPERATORS]
    return {
        "linear_small_m": mean([r for r in linear if r["M"] <= 128]),
        "linear_large_m": mean([r for r in linear if r["M"] >= 256]),
        "linear_min": min((r["ratio"] for r in linear), default=None),
        "decode_attention": mean(full),
        "decode_attention_small": mean(small),
        "decode_attention_min": min((r["ratio"] for r in decode if "ratio" in r), default=None),
        "prefill_attention": mean([r for r in rows if r["op"] == "prefill"]),
        "norms": mean(norms),
    } | {f"norms: {name}": mean([r for r in norms if r["op"] == name]) for name in ROW_OPERATORS}


def commit() -> str | None:
    """The commit of this checkout, if git knows it."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    return done.stdout.strip() or None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--fa3", type=Path, help="the library of vLLM's FlashAttention 3, where vLLM itself is not installed"
    )
    parser.add_argument("--shapes", nargs="*", help="of linear, as NxK; all by default")
    options = parser.parse_args()
    per_us = ceilings()
    print(f"copy {per_us[0] / 1e6:.2f} TB/s, bf16 product {per_us[1] / 1e6:.0f} TFLOP/s", flush=True)
    rows: list[Row] = []
    parts: dict[str, Callable[[], Any]] = {
        "attention": partial(times_attention.rows, per_us, options.fa3),
        "linear": partial(times_linear.rows, per_us, options.shapes),
        "rows": partial(times_rows.rows, per_us),
    }
    for name in options.only:
        for row in parts[name]():
            rows.append(row)
            text = " ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items())
            print(text, flush=True)
            machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "commit": commit()}
            result = {"ceilings": per_us, "summary": summary(rows), **machine, "rows": rows}
            options.out.write_text(json.dumps(result, indent=1), encoding="utf-8")
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()
