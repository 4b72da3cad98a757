"""Forward and backward of a training step: the table "samebits" against stock transformers (bf16, sdpa).

    python benchmarks/training_step.py --out FILE [--shape 1.7b] [--tokens 8192] [--sequence 1024]

One packed row of sequences, as a trainer of a policy runs it: logits of every position, logprob of the next token, mean
as the loss. Both arms hold the same weights, in one process; rounds are interleaved; median over rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import FAMILY, SHAPES


def model_of(shape: str, device: str) -> Any:
    """Random weights."""
    import transformers

    sizes = SHAPES[shape] | {"tie_word_embeddings": FAMILY[shape] == "qwen3_tied"}
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.Qwen3Config(**sizes), dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    return model.train()


def stock_logprob(logits_MV: torch.Tensor, token_M: torch.Tensor) -> torch.Tensor:
    """As trainers compute it in float32, row block by row block, so that float32 logits fit."""
    parts = []
    for logits, token in zip(logits_MV.split(2048), token_M.split(2048), strict=True):
        wide = logits.float()
        parts.append(wide.gather(1, token[:, None])[:, 0] - torch.logsumexp(wide, -1))
    return torch.cat(parts)


def step(model: Any, ids: torch.Tensor, positions: torch.Tensor, logprob: Callable[..., torch.Tensor]) -> None:
    """One forward and backward."""
    for parameter in model.parameters():
        parameter.grad = None
    logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0]
    (-logprob(logits[:-1], ids[0, 1:]).mean()).backward()


def timed_ms(call: Callable[[], None], device: str) -> float:
    """Milliseconds of one call, on a GPU by device events."""
    if device == "cpu":
        started = time.perf_counter()
        call()
        return (time.perf_counter() - started) * 1e3
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def peak_gib(device: str) -> float | None:
    """The most memory since it was asked for last."""
    if device == "cpu":
        return None
    found = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.reset_peak_memory_stats()
    return found


def main() -> None:
    from samebits.kernels.adapters.transformers.engine import patch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", choices=SHAPES, default="1.7b")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try this script out")
    options = parser.parse_args()
    torch.manual_seed(0)
    device: str = options.device
    model = model_of(options.shape, device)
    count = options.tokens // options.sequence
    ids = torch.randint(0, SHAPES[options.shape]["vocab_size"], (1, options.tokens), device=device)
    packed = torch.arange(options.sequence, device=device).repeat(count)[None]
    result: dict[str, Any] = {"tokens": options.tokens, "sequence": options.sequence, "shape": options.shape}
    # Stock sdpa takes equal sequences as rows of a batch: its packed mask would be the slow path.
    rows = ids.view(count, options.sequence)
    places = packed.view(count, options.sequence)

    def stock() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        logits = model(input_ids=rows, position_ids=places, use_cache=False).logits
        chosen = logits[:, :-1].reshape(-1, logits.shape[-1])
        (-stock_logprob(chosen, rows[:, 1:].reshape(-1)).mean()).backward()

    times: dict[str, list[float]] = {"stock": [], "samebits": []}
    for turn in range(options.rounds + 2):
        spent, result["stock_gib"] = timed_ms(stock, device), peak_gib(device)
        patched = patch(model, "samebits")
        ours = timed_ms(partial(step, model, ids, packed, patched.logprob), device)
        result["samebits_gib"] = peak_gib(device)
        result["read_back"] = {role: list(entry) for role, entry in patched.read_back().items()}
        patched.undo()
        if turn >= 2:
            times["stock"].append(spent)
            times["samebits"].append(ours)
    medians = {arm: statistics.median(values) for arm, values in times.items()}
    result |= {"ms": times, "median_ms": medians, "ratio": medians["stock"] / medians["samebits"]}
    print(json.dumps({key: value for key, value in result.items() if key != "read_back"}), flush=True)
    options.out.write_text(json.dumps(result, indent=1), encoding="utf-8")
    if device == "cpu":
        return
    patched = patch(model, "samebits")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        step(model, ids, packed, patched.logprob)
        torch.cuda.synchronize()
    table = profiler.key_averages().table(sort_by="cuda_time_total", row_limit=25, max_name_column_width=60)
    result["kernels"] = table
    print(table)
    options.out.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
