"""The trainer's side of an exactness check: python benchmarks/score_child.py --model FOLDER --out FILE ROLLOUT ...

Loads the model with transformers, puts the table "samebits" under it and recomputes the logprob of every sampled token
of the files that engine_child.py saved. The negative control flips one bit of one logprob and must be counted.

Legend: M scored rows.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import torch

MOST_TOKENS = 8192
"""Tokens packed into one forward."""


def differing(a: torch.Tensor, b: torch.Tensor) -> int:
    """Values with other bits; a value that is not finite counts too."""
    other = a.view(torch.int32) != b.view(torch.int32)
    return int((other | ~a.isfinite() | ~b.isfinite()).sum())


def packs(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Sequences of one temperature in groups that fit one forward."""
    groups: list[list[dict[str, Any]]] = []
    size = MOST_TOKENS
    # Shuffled: where time ends early, what was scored is of every round.
    for row in sorted(random.Random(0).sample(rows, len(rows)), key=lambda row: row["temperature"]):
        need = len(row["prompt"]) + len(row["sampled"]) - 1
        if size + need > MOST_TOKENS or groups[-1][0]["temperature"] != row["temperature"]:
            groups.append([])
            size = 0
        groups[-1].append(row)
        size += need
    return groups


def scored(trainer: Any, group: list[dict[str, Any]]) -> torch.Tensor:
    """float32 [M]: the logprob of every sampled token of these sequences."""
    prompts, sampled = ([row[key] for row in group] for key in ("prompt", "sampled"))
    with torch.no_grad():
        found: torch.Tensor = trainer.score(prompts, sampled, temperature=group[0]["temperature"])
    return found.cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=0.0, help="per file; the rest is left, and counted; 0: no end")
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args()
    from transformers import AutoModelForCausalLM

    from samebits.kernels.adapters.setup.proved import Standing
    from samebits.kernels.adapters.transformers.engine import patch
    from samebits.kernels.adapters.transformers.trainer import Trainer

    model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16).to(options.device).eval()
    # What patch_trainer returns; it has no table "samebits" on a CPU, where this script is tried out.
    trainer = Trainer(patch(model, "samebits"), Standing(None))
    result: dict[str, Any] = {}
    for file in options.files:
        begun = time.perf_counter()
        rows = torch.load(file)
        groups = packs(rows)
        parts = []
        for group in groups:
            parts.append(scored(trainer, group))
            if options.seconds and time.perf_counter() - begun > options.seconds:
                break
        ours = torch.cat(parts)
        theirs = torch.cat([row["logprobs"] for group in groups[: len(parts)] for row in group])
        flipped = theirs.clone()
        flipped.view(torch.int32)[len(flipped) // 2] ^= 1
        diff = (theirs.double() - ours.double()).abs()
        result[file.stem] = {
            "tokens": theirs.numel(),
            "of": sum(len(row["sampled"]) for row in rows),
            "nonzero": differing(ours, theirs),
            "largest": float(diff.max()),
            "control": differing(ours, flipped) - differing(ours, theirs),
            "seconds": time.perf_counter() - begun,
        }
        print(file.stem, result[file.stem], flush=True)
    result["read_back"] = {role: [name, calls] for role, (name, calls) in trainer.read_back().items()}
    options.out.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
