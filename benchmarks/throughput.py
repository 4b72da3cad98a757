"""Rollout throughput of vLLM as it is, of its batch-invariant mode, and with samebits' operators.

    python benchmarks/throughput.py --out FOLDER [--shape 1.7b] [--arms default samebits] [--concurrency 8 64 256]

Each arm is an engine in its own process with its own compile cache; all are up together and take turns, so that clocks
and temperature are shared. Arguments are vLLM's defaults but for lengths and the size of the KV cache, equal for all. A
round runs a fixed number of requests (prompts of 128 to 767 tokens, 256 new tokens, logprobs of the sampled tokens),
as many in flight as the concurrency says; how many is measured on the first arm, so that it takes at least --seconds.
Afterwards the trainer with the table "samebits" recomputes the sampled tokens of the samebits arm (not for dummy
weights).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from common import SHAPES, linked, write_model
from engines import ARMS, Engine, score, write_config

NEW_TOKENS = 256
PROMPT = (128, 767)


def settings_of(options: argparse.Namespace, model: Path) -> dict[str, Any]:
    """The same for every arm."""
    settings: dict[str, Any] = {
        "model": str(model),
        "dtype": "bfloat16",
        "skip_tokenizer_init": True,
        "max_model_len": options.max_model_len,
        "logprobs_mode": "processed_logprobs",
        "kv_cache_memory_bytes": options.kv_gib << 30,
        "gpu_memory_utilization": 0.2,
    }
    return settings | ({"load_format": "dummy"} if options.dummy else {})


def work_of(seed: int, count: int, vocabulary: int) -> dict[str, int]:
    """Prompts of a round: equal for all arms, never seen before in this run."""
    shortest, longest = PROMPT
    return {
        "seed": seed,
        "count": count,
        "shortest": shortest,
        "longest": longest,
        "shared": 0,
        "vocabulary": vocabulary,
    }


def measure(engines: list[Engine], options: argparse.Namespace, vocabulary: int) -> list[dict[str, Any]]:
    """All rounds: rows of arm, concurrency, round, tokens, seconds."""
    rows = []
    for concurrency in options.concurrency:
        size = {"new_tokens": NEW_TOKENS, "concurrency": concurrency}
        waves = 1.0
        for engine in engines:
            # Twice: what is compiled on first use is compiled in the first.
            for turn in range(options.warm):
                warm = engine.ask("generate", prompts=work_of(turn, concurrency, vocabulary), keep=False, **size)
            if engine is engines[0]:
                waves = options.seconds / warm["seconds"]
        count = max(concurrency, round(waves * 1.1 * concurrency))
        for turn in range(options.rounds):
            order = engines if turn % 2 == 0 else engines[::-1]
            for engine in order:
                if turn and engine.name in options.once:
                    continue
                work = work_of(1000 * concurrency + 10 + turn, count, vocabulary)
                keep = engine.name == "samebits" and not options.dummy and turn < options.score_rounds
                found = engine.ask("generate", prompts=work, keep=keep, **size)
                row = {"arm": engine.name, "concurrency": concurrency, "round": turn} | found
                row["tokens_per_s"] = row["tokens"] / row["seconds"]
                rows.append(row)
                print(json.dumps(row), flush=True)
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and range per arm and concurrency, and the ratio of medians to the default arm."""
    found: dict[str, Any] = {}
    for row in rows:
        found.setdefault(str(row["concurrency"]), {}).setdefault(row["arm"], []).append(row["tokens_per_s"])
    for arms in found.values():
        base = statistics.median(arms["default"]) if "default" in arms else None
        for arm, values in arms.items():
            middle = statistics.median(values)
            arms[arm] = {
                "median": round(middle, 1),
                "range": [round(min(values), 1), round(max(values), 1)],
                "rounds": len(values),
                "ratio": None if base is None else round(middle / base, 4),
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", choices=SHAPES, default="1.7b")
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=list(ARMS))
    parser.add_argument("--concurrency", nargs="*", type=int, default=[8, 64, 256])
    parser.add_argument("--seconds", type=float, default=10.0, help="shortest round of the default arm")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=int, default=2, help="warm-up waves per arm and concurrency")
    parser.add_argument("--once", nargs="*", choices=ARMS, default=[], help="arms that run in the first round only")
    parser.add_argument("--score-rounds", type=int, default=99, help="rounds per concurrency whose tokens are scored")
    parser.add_argument("--kv-gib", type=int, default=28)
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--dummy", action="store_true", help="dummy weights: no exactness check")
    parser.add_argument("--work", type=Path, help="where model and tokens are kept; default: a temporary folder")
    parser.add_argument("--no-score", action="store_true", help="only save the tokens: score_child.py can come later")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    work = options.work or Path(tempfile.mkdtemp(prefix="throughput-"))
    work.mkdir(parents=True, exist_ok=True)
    env = linked(work / "links")
    settings = settings_of(options, work / "model")
    engines = [Engine.start(arm, settings, env, options.out, ARMS[arm]) for arm in options.arms]
    begun = time.monotonic()
    if options.dummy:
        write_config(work / "model", options.shape)
    else:
        write_model(work / "model", options.shape, options.device, env)
    print(f"model written in {time.monotonic() - begun:.0f} s", flush=True)
    result: dict[str, Any] = {"shape": options.shape, "settings": settings, "seconds": options.seconds}
    result["up"] = {engine.name: round(engine.ready(), 1) for engine in engines}
    print(f"up in {result['up']}, {time.monotonic() - begun:.0f} s in all", flush=True)
    vocabulary = int(SHAPES[options.shape]["vocab_size"])
    rows = measure(engines, options, vocabulary)
    result |= {"rows": rows, "summary": summary(rows)}
    print(json.dumps(result["summary"], indent=1), flush=True)
    for engine in engines:
        if engine.name == "samebits":
            result["read_back"] = engine.ask("read_back")
        if options.device == "cuda":
            small = work_of(77, 8, vocabulary) | {"shortest": 300, "longest": 300}
            result[f"kernels_{engine.name}"] = engine.ask(
                "profile", prompts=small, new_tokens=64, concurrency=8, keep=False
            )["kernels"]
    (options.out / "throughput.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    ours = [engine for engine in engines if engine.name == "samebits"]
    if ours and not options.dummy:
        ours[0].ask("save", path=str(work / "samebits.pt"))
    for engine in engines:
        engine.stop()
    if ours and not options.dummy and not options.no_score:
        exact = score(work / "model", [work / "samebits.pt"], options.device, env, options.out / "exact.json")
        result["exact"] = exact["samebits"]
        (options.out / "throughput.json").write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
