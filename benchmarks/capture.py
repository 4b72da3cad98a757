"""What a capture costs, and how fast stored tensors are compared: python benchmarks/capture.py [--cuda]

Every figure is a ratio within one run: the things compared are timed in turn, and the median over the turns is taken
(of a capture, the median of the ratio to the forward just before it, so that a machine that grows slower meanwhile
changes little). A capture's time includes its digests, all folded; putting the hooks in and out once per run and
writing the artifact are not part of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from samebits.tools.capture.recorder import Recorder
from samebits.tools.capture.rows import PassRows
from samebits.tools.diff.bits import compare, digest_rows, next_ulp
from samebits.tools.schema.sites import CapturePlan

HEADS = {"tiny": (4, 2, 64), "160m": (16, 8, 64), "1.7b": (16, 8, 128)}
WIDTHS = {"tiny": (256, 512), "160m": (1024, 3072), "1.7b": (2048, 6144)}
VOCABULARY = 32000


class Rows:
    """Row map of one flat pass."""

    def __init__(self, tokens: int) -> None:
        whole = torch.arange(tokens, dtype=torch.int32)
        self.rows = PassRows(torch.zeros_like(whole), whole, (1, tokens), None)

    def current(self) -> PassRows:
        return self.rows


def clock(device: str) -> float:
    """Seconds: of the wall on a GPU, of this process on a CPU, where other processes take their share of the wall."""
    if device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def seconds(device: str, call: Callable[[], object]) -> float:
    """What one call takes."""
    start = clock(device)
    call()
    return clock(device) - start


def turns(repeats: int, *timed: Callable[[], float]) -> list[tuple[float, ...]]:
    """The seconds that each returns, turn by turn, after one turn that does not count."""
    return [tuple(call() for call in timed) for _ in range(repeats + 1)][1:]


def forwards(device: str, size: str, layers: int, tokens: int, repeats: int) -> dict[str, object]:
    """A prefill forward without capture, with module digests, with module tensors."""
    hidden, middle = WIDTHS[size]
    heads, groups, head = HEADS[size]
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=middle,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=head,
        max_position_embeddings=8192,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Qwen3ForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    ids = torch.randint(0, VOCABULARY, (1, tokens), device=device)
    rows = Rows(tokens)

    def free() -> None:
        with torch.no_grad():
            model(ids, use_cache=False)

    def ratio(plan: CapturePlan) -> tuple[float, float]:
        recorder = Recorder(model, rows, plan)

        def whole() -> None:
            free()
            recorder.end()

        def captured() -> float:
            with recorder:
                taken = seconds(device, whole)
            recorder.sink.store.drop()
            return taken

        pairs = turns(repeats, lambda: seconds(device, free), captured)
        return statistics.median(plain for plain, _ in pairs), statistics.median(held / plain for plain, held in pairs)

    plain, digests = ratio(CapturePlan())
    _, tensors = ratio(CapturePlan(store="tensors", budget_bytes=1 << 40))
    return {
        "model": size,
        "layers": layers,
        "tokens": tokens,
        "forward_ms": round(plain * 1e3, 2),
        "digests_ratio": round(digests, 3),
        "tensors_ratio": round(tensors, 3),
    }


def memory(device: str, rows: int, columns: int, repeats: int) -> dict[str, object]:
    """Row digests, and the comparison of equal and of nearly equal tensors, against a copy of the same bytes."""
    a = torch.randn(rows, columns, device=device).to(torch.bfloat16)
    b, c, sink = a.clone(), a.clone(), torch.empty_like(a)
    c[::100, 7] = next_ulp(c[::100, 7])
    calls = (lambda: sink.copy_(a), lambda: digest_rows(a), lambda: compare(a, b), lambda: compare(a, c))
    times = zip(*turns(repeats, *(partial(seconds, device, call) for call in calls)), strict=True)
    copy, digest, equal, nearly = (a.nbytes / 1e9 / statistics.median(own) for own in times)
    return {
        "rows": rows,
        "columns": columns,
        "GB_s_of_one_tensor": {
            "copy": round(copy, 2),
            "digest": round(digest, 2),
            "compare_equal": round(equal, 2),
            "compare_1_percent_of_rows_differing": round(nearly, 2),
        },
        "digest_over_copy": round(copy / digest, 2),
        "compare_equal_over_copy": round(copy / equal, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    device = "cuda" if args.cuda else "cpu"
    shapes = (
        [("1.7b", 8, 4096), ("1.7b", 8, 256)] if args.cuda else [("tiny", 4, 512), ("160m", 4, 256), ("1.7b", 2, 256)]
    )
    for rows, columns in [(65536, 8192), (4096, 2048)] if args.cuda else [(4096, 4096), (512, 256)]:
        print(json.dumps(memory(device, rows, columns, args.repeats)), flush=True)
    for shape in shapes:
        print(json.dumps(forwards(device, *shape, args.repeats)), flush=True)


if __name__ == "__main__":
    main()
