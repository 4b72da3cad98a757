"""The regression gate on a GPU, with samebits' operators under the engine and the trainer, on a random model of a real
shape.

    python benchmarks/gate_h200.py --out FOLDER [--shape 1.7b] [--coverage full] [--axes A,B] [--resume FOLDER/job]

Writes FOLDER/model (kept for later pieces), FOLDER/samebits.toml, FOLDER/job, FOLDER/gate.xml; exits as the gate does.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from common import SHAPES, linked, write_model

TOML = """device = "{device}"

[rollout]
model = "model"
kernels = "{kernels}"
max_model_len = 2048
{rollout}

[trainer]
kernels = "{kernels}"
{trainer}
layout = "packed"
micro_batch = 8
logprob = "log_softmax"

[workload]
prompts = {prompts}
prompt_tokens = [5, 700]
new_tokens = 32

[gate]
require = ["repeat", "batch", "decode_prefill", "chunked_prefill", "reload", "trainer_rollout"]
min_tokens = 256
coverage = "{coverage}"
axis_limit_s = 240
min_throughput = {bar}
"""
STEADY = (
    'env = { VLLM_CPU_ATTN_SPLIT_KV = "0", SAMEBITS_CPU_ATTN_PIECES = "1", ONEDNN_MAX_CPU_ISA = "AVX512_CORE_BF16" }'
)
SIDES = {
    # With a size given the engine does not profile memory, which another engine that starts meanwhile would disturb.
    "cuda": (f"engine = {{ gpu_memory_utilization = 0.2, kv_cache_memory_bytes = {16 << 30} }}", ""),
    "cpu": (f"engine = {{ max_num_batched_tokens = 8192 }}\neager = true\n{STEADY}", STEADY),
}
"""Further lines of [rollout] and [trainer]. On the CPU (--kernels vllm --shape tiny) this script is tried out."""


def main() -> int:
    """Make the model and the experiment where they are missing, then run `samebits gate`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", choices=SHAPES, default="1.7b")
    parser.add_argument("--layers", type=int, default=0, help="of the model; 0: as many as the shape has")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--kernels", default="samebits")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--coverage", choices=("fast", "full"), default="fast")
    parser.add_argument("--bar", type=float, default=0.7)
    parser.add_argument("--axes", default="")
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--job", default="job", help="name of the job folder below --out")
    options = parser.parse_args()
    folder: Path = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    env = linked(folder / "links")
    write_model(folder / "model", options.shape, options.device, env, options.layers)
    rollout, trainer = SIDES[options.device]
    text = TOML.format(
        device=options.device,
        kernels=options.kernels,
        rollout=rollout,
        trainer=trainer,
        prompts=options.prompts,
        coverage=options.coverage,
        bar=options.bar,
    )
    (folder / "samebits.toml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "samebits.server.cli.entry", "gate", "--out", str(folder / options.job)]
    command += ["--junit", str(folder / "gate.xml")]
    command += ["--axes", options.axes] if options.axes else []
    command += ["--resume", str(options.resume.resolve())] if options.resume else []
    return subprocess.run(command, cwd=folder, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
