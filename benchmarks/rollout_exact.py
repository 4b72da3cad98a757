"""Exactness of vLLM with samebits' operators against the trainer: python benchmarks/rollout_exact.py --out FOLDER

Each variant is an engine in its own process and cache folder: as vLLM runs by default (compiled, CUDA graphs, prefix
cache), eager, with prompts cut into small chunks, with the other model runner. Each runs the same prompts three times:
cold, again (cached prefixes) at a low concurrency, and at temperature 0.7. Then the trainer with the table "samebits"
recomputes every sampled token.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from common import SHAPES, linked, write_model
from engines import ARMS, Engine, score

OURS = ARMS["samebits"]
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "default": ({}, OURS),
    "eager": ({"enforce_eager": True}, OURS),
    "chunked": ({"max_num_batched_tokens": 256, "max_num_seqs": 64}, OURS),
    "piecewise": ({"compilation_config": {"cudagraph_mode": "PIECEWISE"}}, OURS),
    "runner_v1": ({}, OURS | {"VLLM_USE_V2_MODEL_RUNNER": "0"}),
    "stock": ({}, {}),
}
"""Engine arguments and environment. "stock" is vLLM as it is: it must differ, else the check sees nothing."""


def run(engine: Engine, prompts: dict[str, int], new_tokens: int, file: Path) -> dict[str, Any]:
    """All prompts cold, some again at a low concurrency, all at temperature 0.7; the tokens into `file`."""
    facts: dict[str, Any] = {"up": engine.ready()}
    print(f"{engine.name}: up in {facts['up']:.0f} s", flush=True)
    some = prompts | {"count": max(4, prompts["count"] // 4)}
    for asked, concurrency, temperature in ((prompts, 256, 1.0), (some, 5, 1.0), (prompts, 64, 0.7)):
        engine.ask("generate", prompts=asked, new_tokens=new_tokens, concurrency=concurrency, temperature=temperature)
    facts |= engine.ask("read_back")
    short = prompts | {"count": 8, "longest": 64, "shared": 20}
    facts |= engine.ask("profile", prompts=short, new_tokens=8, concurrency=8, keep=False)
    engine.ask("save", path=str(file))
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", choices=SHAPES, default="1.7b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--longest", type=int, default=1400)
    parser.add_argument("--new-tokens", type=int, default=48)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="exact-"))
    env = linked(work / "links")
    settings: dict[str, Any] = {
        "model": str(work / "model"),
        "dtype": "bfloat16",
        "skip_tokenizer_init": True,
        "max_model_len": 2048 if options.device == "cuda" else 512,
        "logprobs_mode": "processed_logprobs",
        "kv_cache_memory_bytes": (8 if options.device == "cuda" else 1) << 30,
        "gpu_memory_utilization": 0.15,
    }
    engines = [
        Engine.start(name, settings | VARIANTS[name][0], env, work, VARIANTS[name][1]) for name in options.variants
    ]
    write_model(work / "model", options.shape, options.device, env)
    prompts = {"seed": 1, "count": options.prompts, "shortest": 3, "longest": options.longest}
    prompts |= {"shared": options.longest // 3, "vocabulary": SHAPES[options.shape]["vocab_size"]}
    files = []
    facts: dict[str, Any] = {}
    for engine in engines:
        file = work / f"{engine.name}.pt"
        try:
            facts[engine.name] = run(engine, prompts, options.new_tokens, file)
            files.append(file)
        except RuntimeError as error:
            facts[engine.name] = {"failed": str(error)}
            print(f"FAILED {str(error)[-2500:]}", flush=True)
        engine.stop()
        (options.out / "engines.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    if files:
        score(work / "model", files, options.device, env, options.out / "exact.json")


if __name__ == "__main__":
    main()
