"""Rollout throughput of vLLM as it is, of its batch-invariant mode, and with samebits' operators.

    python benchmarks/throughput.py --out FOLDER [--shape 1.7b] [--arms default samebits] [--concurrency 8 64 256]

Each arm is an engine in its own process with its own compile cache; all are up together and take turns, so that clocks
and temperature are shared. Arguments are vLLM's defaults but for lengths and the size of the KV cache, equal for all. A
round runs a fixed number of requests (prompts of 128 to 767 tokens, 256 new tokens, logprobs of the sampled tokens),
as many in flight as the concurrency says; how many is measured on the first arm, so that it takes at least --seconds. A
round is cut into slices, and the arms take turns slice by slice on the same processors: hosts were seen to change speed
by a quarter within a minute, and small models wait for the host.
Afterwards the trainer with the table "samebits" recomputes the sampled tokens of the samebits arm (not for dummy
weights).

FOLDER/throughput-SHAPE.json is written after every round. Another call with the same --out adds a piece to it (other
arms, other concurrencies); ratios are taken within a piece. With the same --work it finds the model and the caches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import SHAPES, linked, processor, write_model
from engines import ARMS, Engine, score, write_config

KV_GIB = {"cuda": 28, "cpu": 1}
"""256 sequences of 767 + 256 tokens of 8B's size nearly fit; three arms of 1.7B or two of 8B fit on 139 GiB."""
SCORE_START_S = 40.0
"""What loading the model for scoring takes besides --score-seconds."""


@dataclass(slots=True)
class Result:
    """The file, written again after every change."""

    path: Path
    piece: int
    whole: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path) -> Result:
        """With the pieces that are there already."""
        whole = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"rows": [], "pieces": []}
        return cls(path, len(whole["pieces"]), whole)

    def put(self, **facts: Any) -> None:
        """Facts of this piece."""
        if len(self.whole["pieces"]) == self.piece:
            self.whole["pieces"].append({})
        self.whole["pieces"][self.piece] |= facts
        self.write()

    def row(self, row: dict[str, Any]) -> None:
        """One round of one arm."""
        self.whole["rows"].append({"piece": self.piece} | row)
        self.write()

    def write(self) -> None:
        """All of it."""
        self.whole["summary"] = summary(self.whole["rows"])
        self.path.write_text(json.dumps(self.whole, indent=1), encoding="utf-8")


def settings_of(options: argparse.Namespace, model: Path) -> dict[str, Any]:
    """The same for every arm."""
    settings: dict[str, Any] = {
        "model": str(model),
        "dtype": "bfloat16",
        "skip_tokenizer_init": True,
        "max_model_len": options.max_model_len,
        "logprobs_mode": "processed_logprobs",
        "kv_cache_memory_bytes": (options.kv_gib or KV_GIB[options.device]) << 30,
        "gpu_memory_utilization": 0.2,
    }
    if options.device == "cpu":  # where this script is tried out
        settings["enforce_eager"] = True
    return settings | ({"load_format": "dummy"} if options.dummy else {})


def work_of(seed: int, count: int, vocabulary: int, prompt: list[int]) -> dict[str, int]:
    """Prompts of a round: equal for all arms, never seen before in this run."""
    shortest, longest = prompt
    return {
        "seed": seed,
        "count": count,
        "shortest": shortest,
        "longest": longest,
        "shared": 0,
        "vocabulary": vocabulary,
    }


def in_turn(
    engines: list[Engine], works: list[dict[str, int]], keep: bool, turn: int, size: dict[str, int]
) -> list[dict[str, Any]]:
    """One round: every slice of the work on each arm in turn, so that what slows the host for seconds slows all.

    A row per arm: sums, the median of its slices' median steps, its longest step.
    """
    found: dict[str, list[dict[str, Any]]] = {engine.name: [] for engine in engines}
    for part, work in enumerate(works):
        for engine in engines if (turn + part) % 2 == 0 else engines[::-1]:
            kept = keep and engine.name == "samebits"
            found[engine.name].append(engine.ask("generate", prompts=work, keep=kept, **size))
    rows = []
    for name, parts in found.items():
        seconds, tokens = (sum(part[key] for part in parts) for key in ("seconds", "tokens"))
        row = {"arm": name, "seconds": seconds, "tokens": tokens, "tokens_per_s": tokens / seconds}
        row["slices"] = [round(part["tokens"] / part["seconds"], 1) for part in parts]
        row["median_step_ms"] = statistics.median(part["median_step_ms"] for part in parts)
        row["longest_step_ms"] = max(part["longest_step_ms"] for part in parts)
        rows.append(row)
    return rows


def measure(engines: list[Engine], options: argparse.Namespace, result: Result, ends: float) -> None:
    """All rounds, into the result: arm, concurrency, round, tokens, seconds. None is begun that would end after `ends`
    (of time.monotonic)."""
    vocabulary = int(SHAPES[options.shape]["vocab_size"])
    left: list[str] = []
    for concurrency in options.concurrency:
        size = {"new_tokens": options.new_tokens, "concurrency": concurrency}
        waves = 1.0
        if time.monotonic() > ends:
            left.append(f"concurrency {concurrency}")
            continue
        for engine in engines:
            # Twice: what is compiled on first use is compiled in the first.
            for turn in range(options.warm):
                work = work_of(turn, concurrency, vocabulary, options.prompt)
                warm = engine.ask("generate", prompts=work, keep=False, **size)
            if engine is engines[0]:
                waves = options.seconds / warm["seconds"]
        slices = max(1, min(options.slices, round(waves)))
        count = max(concurrency, round(waves * 1.1 * concurrency / slices))
        took = 0.0
        for turn in range(options.rounds):
            begun = time.monotonic()
            if begun + took > ends:
                left.append(f"concurrency {concurrency}, rounds from {turn}")
                break
            awake = [engine for engine in engines if not (turn and engine.name in options.once)]
            keep = not options.dummy and turn < options.score_rounds
            works = [
                work_of(1000 * concurrency + 10 + turn * slices + part, count, vocabulary, options.prompt)
                for part in range(slices)
            ]
            for row in in_turn(awake, works, keep, turn, size):
                result.row({"concurrency": concurrency, "round": turn} | row)
                print(json.dumps(row), flush=True)
            took = time.monotonic() - begun
    if left:
        result.put(not_run=f"no time was left: {'; '.join(left)}")


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Per concurrency and arm: median and range over all rounds; the ratio of its median to that of the default arm in
    the same piece (of the best measured piece: the one with most rounds, the last of them)."""
    found: dict[str, Any] = {}
    for concurrency, arm in dict.fromkeys((row["concurrency"], row["arm"]) for row in rows):
        own = [row for row in rows if (row["concurrency"], row["arm"]) == (concurrency, arm)]
        values = [row["tokens_per_s"] for row in own]
        pieces = [row["piece"] for row in own]
        ratio = None
        for piece in sorted(set(pieces), key=lambda piece: (pieces.count(piece), piece)):
            base = [
                row["tokens_per_s"]
                for row in rows
                if (row["concurrency"], row["arm"], row["piece"]) == (concurrency, "default", piece)
            ]
            if base:
                mine = [row["tokens_per_s"] for row in own if row["piece"] == piece]
                ratio = round(statistics.median(mine) / statistics.median(base), 4)
        found.setdefault(str(concurrency), {})[arm] = {
            "median": round(statistics.median(values), 1),
            "range": [round(min(values), 1), round(max(values), 1)],
            "rounds": len(values),
            "ratio": ratio,
        }
    return found


def up(engines: list[Engine], result: Result) -> list[Engine]:
    """Those that came up; the others are said."""
    ready: dict[str, float] = {}
    failed: dict[str, str] = {}
    for engine in engines:
        try:
            ready[engine.name] = round(engine.ready(), 1)
        except RuntimeError as error:
            failed[engine.name] = str(error)[-2000:]
            engine.stop()
    result.put(up=ready, **({"failed": failed} if failed else {}))
    print(f"up in {ready}; failed: {failed}", flush=True)
    return [engine for engine in engines if engine.name in ready]


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", choices=SHAPES, default="1.7b")
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=["default", "samebits"])
    parser.add_argument("--concurrency", nargs="*", type=int, default=[8, 64, 256])
    parser.add_argument("--seconds", type=float, default=10.0, help="shortest round of the default arm")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--slices", type=int, default=5, help="a round's work, in so many pieces between the arms' turns"
    )
    parser.add_argument("--pin", type=int, default=6, help="processors that all arms share once they are up; 0: all")
    parser.add_argument("--warm", type=int, default=2, help="warm-up waves per arm and concurrency")
    parser.add_argument("--once", nargs="*", choices=ARMS, default=[], help="arms that run in the first round only")
    parser.add_argument("--total", type=float, default=3600.0, help="wall time of all; rounds that do not fit are left")
    parser.add_argument("--score-rounds", type=int, default=99, help="rounds per concurrency whose tokens are scored")
    parser.add_argument("--score-seconds", type=float, default=90.0, help="scoring stops after these, and says so")
    parser.add_argument("--kv-gib", type=int, default=0, help=f"per arm; 0: {KV_GIB}")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--prompt", nargs=2, type=int, default=[128, 767], help="shortest and longest prompt")
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--dummy", action="store_true", help="dummy weights: no exactness check")
    parser.add_argument("--work", type=Path, help="model, links, caches, tokens, logs; default: a temporary folder")
    parser.add_argument("--no-score", action="store_true", help="only save the tokens: score_child.py can come later")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    begun = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    work: Path = (options.work or Path(tempfile.mkdtemp(prefix="throughput-"))).resolve()
    work.mkdir(parents=True, exist_ok=True)
    env = linked(work / "links")
    model = work / f"model-{options.shape}{'-dummy' if options.dummy else ''}"
    settings = settings_of(options, model)
    result = Result.of(options.out / f"throughput-{options.shape}.json")
    result.put(shape=options.shape, arms=options.arms, settings=settings, seconds=options.seconds)
    result.put(host=processor(env))
    engines = [Engine.start(arm, settings, env, work, ARMS[arm]) for arm in options.arms]
    if options.dummy:
        write_config(model, options.shape)
    else:
        write_model(model, options.shape, options.device, env)
    print(f"model written in {time.monotonic() - begun:.0f} s", flush=True)
    engines = up(engines, result)
    cpus = set(sorted(os.sched_getaffinity(0))[: options.pin]) if options.pin else set()
    if cpus:
        result.put(cpus=sorted(cpus))
        for engine in engines:
            engine.pin(cpus)
    scoring = "samebits" in options.arms and not options.dummy
    ends = begun + options.total - (options.score_seconds + SCORE_START_S if scoring and not options.no_score else 0)
    measure(engines, options, result, ends)
    print(json.dumps(result.whole["summary"], indent=1), flush=True)
    tokens = work / "samebits.pt"
    for engine in engines:
        if engine.name == "samebits":
            result.put(read_back=engine.ask("read_back"))
            if scoring:
                engine.ask("save", path=str(tokens))
        if options.device == "cuda" and time.monotonic() < ends:
            small = work_of(77, 8, int(SHAPES[options.shape]["vocab_size"]), [300, 300])
            try:
                found = engine.ask("profile", prompts=small, new_tokens=64, concurrency=8, keep=False)
            except RuntimeError as error:
                found = {"kernels": f"failed: {error}"[:2000]}
            result.put(**{f"kernels_{engine.name}": found["kernels"]})
    for engine in engines:
        engine.end()
    for engine in engines:
        engine.stop()
    if scoring and not options.no_score and tokens.is_file():
        exact = score(model, [tokens], options.device, env, work / "exact.json", options.score_seconds)
        result.put(exact=exact["samebits"])
    print(f"{time.monotonic() - begun:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
