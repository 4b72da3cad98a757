"""What a capture costs, and how fast stored tensors are compared: python benchmarks/capture.py [--cuda]

Every figure is a ratio within one run: the two things are timed in turn, the median of each is taken. A capture's time
includes its last digests (the end of the recorder), not the writing of the artifact.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from samebits.tools.capture.recorder import Recorder
from samebits.tools.capture.rows import PassRows
from samebits.tools.diff.bits import compare, digest_rows, next_ulp
from samebits.tools.schema.sites import CapturePlan

SIZES = {
    "tiny": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
    "160m": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 64,
    },
    "1.7b": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
}


class Rows:
    """Row map of one flat pass."""

    def __init__(self, tokens: int) -> None:
        whole = torch.arange(tokens, dtype=torch.int32)
        self.rows = PassRows(torch.zeros_like(whole), whole, (1, tokens), None)

    def current(self) -> PassRows:
        return self.rows


def sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def clock(device: str) -> float:
    """Seconds: of the wall on a GPU, of this process on a CPU, where other processes take their share of the wall."""
    return time.perf_counter() if device == "cuda" else time.process_time()


def medians(device: str, repeats: int, *calls: Callable[[], object]) -> list[float]:
    """Median seconds of each call, taken in turn."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(repeats + 1):
        for call, own in zip(calls, times, strict=True):
            sync(device)
            start = clock(device)
            call()
            sync(device)
            if turn:
                own.append(clock(device) - start)
    return [statistics.median(own) for own in times]


def forwards(device: str, size: str, layers: int, tokens: int, repeats: int) -> dict[str, object]:
    """A prefill forward without capture, with module digests, with module tensors."""
    config = Qwen3Config(vocab_size=32000, num_hidden_layers=layers, max_position_embeddings=8192, **SIZES[size])
    with torch.device(device):
        model = Qwen3ForCausalLM(config).to(torch.bfloat16).eval()
    ids = torch.randint(0, 32000, (1, tokens), device=device)
    rows = Rows(tokens)

    @torch.no_grad()
    def free() -> None:
        model(ids, use_cache=False)

    def captured(plan: CapturePlan) -> Callable[[], None]:
        @torch.no_grad()
        def run() -> None:
            with Recorder(model, rows, plan):
                model(ids, use_cache=False)

        return run

    plain, digests, tensors = medians(
        device, repeats, free, captured(CapturePlan()), captured(CapturePlan(store="tensors", budget_bytes=1 << 40))
    )
    return {
        "model": size,
        "layers": layers,
        "tokens": tokens,
        "forward_ms": round(plain * 1e3, 2),
        "digests_ratio": round(digests / plain, 3),
        "tensors_ratio": round(tensors / plain, 3),
    }


def memory(device: str, rows: int, columns: int, repeats: int) -> dict[str, object]:
    """Row digests, and the comparison of equal and of nearly equal tensors, against a copy of the same bytes."""
    a = torch.randn(rows, columns, device=device).to(torch.bfloat16)
    b, c, sink = a.clone(), a.clone(), torch.empty_like(a)
    c[::100, 7] = next_ulp(c[::100, 7])
    copy, digest, equal, nearly = medians(
        device, repeats, lambda: sink.copy_(a), lambda: digest_rows(a), lambda: compare(a, b), lambda: compare(a, c)
    )
    size = a.nbytes / 1e9
    return {
        "rows": rows,
        "columns": columns,
        "copy_GB_s_read": round(size / copy, 2),
        "digest_GB_s": round(size / digest, 2),
        "compare_equal_GB_s_of_each": round(size / equal, 2),
        "compare_differing_GB_s_of_each": round(size / nearly, 2),
        "digest_over_copy": round(digest / copy, 2),
        "compare_equal_over_copy": round(equal / copy, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    device = "cuda" if args.cuda else "cpu"
    shapes = (
        [("1.7b", 28, 4096), ("1.7b", 28, 256)] if args.cuda else [("tiny", 4, 512), ("tiny", 4, 32), ("160m", 4, 256)]
    )
    for shape in shapes:
        print(json.dumps(forwards(device, *shape, args.repeats)), flush=True)
    for rows, columns in [(65536, 8192), (4096, 2048)] if args.cuda else [(4096, 4096), (512, 256)]:
        print(json.dumps(memory(device, rows, columns, args.repeats)), flush=True)


if __name__ == "__main__":
    main()
