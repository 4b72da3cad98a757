"""Run by test_controls.py in its own process: disturbs a live engine from inside, prints what was noticed as JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch

from samebits.kernels.adapters.setup import cpu_isa
from samebits.tools.schema.experiment import Rollout, Workload
from samebits.tools.schema.passes import How, Open
from samebits.tools.schema.sites import CapturePlan
from samebits.tools.sides.vllm import rowmap_v1, scoring
from samebits.tools.sides.vllm.side import VllmSide

BLOCKS = 14


def main(model: str, folder: Path) -> None:
    cpu_isa.apply()
    config = Rollout(model=model, eager=True, max_model_len=512, engine={"num_gpu_blocks_override": BLOCKS})
    side = VllmSide.load(Open(role="rollout", config=config, model=model, device="cpu"))
    data = side.generate(Workload(prompts=10, prompt_tokens=(118, 125), new_tokens=16))
    answer: dict[str, Any] = {}

    def differing(scores: Any) -> int:
        return int((scores.logprob_N.view(torch.int32) != data.logprob_N.view(torch.int32)).sum())

    tight = side.score(data, How(), CapturePlan(), (), folder)
    answer["tight"] = {"differ": differing(tight), **tight.facts}
    free = scoring.score(side, data, How(), None, (), folder, force=False)
    answer["free"] = {"differ": differing(free), **free.facts}
    read = rowmap_v1.read

    def shifted(*args: Any) -> Any:
        batch = read(*args)
        return dataclasses.replace(batch, requests=batch.requests[1:] + batch.requests[:1])

    for name, planted in (
        ("requests shifted by one", shifted),
        ("starts one too late", lambda *args: late(read(*args))),
    ):
        rowmap_v1.read = planted
        side.broken = ""
        try:
            side.score(data, How(concurrency=2), None, (), folder / name)
            answer[name] = "not noticed"
        except AssertionError as error:
            answer[name] = str(error)
    try:
        side.score(data, How(), None, (), folder)
    except Exception as error:
        answer["afterwards"] = str(error)
    print(json.dumps(answer))


def late(batch: Any) -> Any:
    return dataclasses.replace(batch, starts=[start + 1 for start in batch.starts])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
