"""The main job on a real shape and a GPU: measure, diff, a side against itself and minimize, with their times.

    python benchmarks/main_job.py --out FOLDER [--shape qwen3-1.7b] [--prompts 8]

Works without an installed samebits: the checkout's folders are linked as a package, with the entry point vLLM loads.
Weights are random, so only the sameness of bits is meant by the numbers, not the size of a gap on a trained model.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHAPES: dict[str, dict[str, object]] = {
    "qwen3-1.7b": {
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
    },
    "tiny": {},
}
EXPERIMENT = """device = "{device}"
[rollout]
model = "{model}"
eager = {eager}
max_model_len = 2048
engine = {{ {engine} }}
[workload]
prompts = {prompts}
prompt_tokens = [5, 120]
new_tokens = 32
"""
MAKE = (
    "import sys, json, pathlib, torch; from samebits.tools.sides.transformers.tiny import write_tiny;"
    "torch.set_default_device(sys.argv[2]);"
    "write_tiny(pathlib.Path(sys.argv[1]), 'qwen3_tied', **json.loads(sys.argv[3]))"
)


def linked(folder: Path) -> dict[str, str]:
    """Environment in which `samebits` is importable and its vLLM plugin is found."""
    package = folder / "samebits"
    package.mkdir(parents=True)
    for name in ("server", "tools", "kernels", "skill"):
        (package / name).symlink_to(ROOT / name)
    facts = folder / "samebits-0.1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: samebits\nVersion: 0.1.0\n", encoding="utf-8")
    (facts / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nsamebits = samebits.tools.sides.vllm.plugin:register\n", encoding="utf-8"
    )
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return dict(os.environ) | {"PYTHONPATH": path}


def run(name: str, arguments: list[str], out: Path, env: dict[str, str]) -> dict[str, object]:
    """One verb as a user runs it; its JSON outcome and seconds."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "samebits.server.cli.main", *arguments, "--json", "-o", str(out / name)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    seconds = time.monotonic() - begun
    (out / f"{name}.json").write_text(done.stdout, encoding="utf-8")
    try:
        outcome = json.loads(done.stdout)
        said = outcome.get("result", {}).get("summary") or outcome.get("message") or outcome.get("state")
    except ValueError:
        said = done.stderr[-2000:]
    print(f"== {name}: exit {done.returncode}, {seconds:.0f} s\n{said}", flush=True)
    return {"name": name, "exit": done.returncode, "seconds": round(seconds, 1), "said": said}


def cut_out(out: Path, env: dict[str, str]) -> list[dict[str, object]]:
    """Minimize the first operator of each kind in the work list; an answer that it cannot be run alone is one too."""
    divergence = out / "diff" / "divergence"
    if not (divergence / "manifest.json").is_file():
        return []
    work = json.loads((divergence / "manifest.json").read_text(encoding="utf-8"))["work"]
    first: dict[str, int] = {}
    for number, item in enumerate(work):
        first.setdefault(item["kind"], number)
    return [
        run(f"minimize-{kind}", ["minimize", str(divergence), "--operator", str(number)], out, env)
        for kind, number in first.items()
    ]


def main() -> None:
    """Run everything; figures into FOLDER/main_job.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-1.7b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--only", nargs="*", default=["diff", "measure", "itself"])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="main-job-"))
    env = linked(work / "links")
    model = work / "model"
    begun = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", MAKE, str(model), options.device, json.dumps(SHAPES[options.shape])], env=env, check=True
    )
    print(f"model written in {time.monotonic() - begun:.0f} s", flush=True)
    engine = "gpu_memory_utilization = 0.25" if options.device == "cuda" else ""
    for name, eager in (("default", "false"), ("eager", "true")):
        text = EXPERIMENT.format(
            device=options.device, model=model, eager=eager, engine=engine, prompts=options.prompts
        )
        (work / f"{name}.toml").write_text(text, encoding="utf-8")
    jobs = {
        "measure": ["measure", "-c", str(work / "default.toml"), "--axes", "repeat,batch,decode_prefill"],
        "diff": ["diff", "-c", str(work / "eager.toml"), "--max-operators", "6"],
        "itself": ["diff", "-c", str(work / "eager.toml"), "--against", "batch"],
    }
    chosen = {name: jobs[name] for name in options.only}
    # One after the other: two engines that start together disturb each other's memory profiling.
    figures = [run(name, arguments, options.out, env) for name, arguments in chosen.items()]
    figures += cut_out(options.out, env)
    (options.out / "main_job.json").write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
