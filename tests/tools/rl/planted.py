"""Run as a script: one exact arm on a tiny model, and what it says to planted faults. Prints JSON.

    python planted.py MODEL FOLDER

A script, because its engine needs an environment of its own from the start.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(model: str, folder: Path) -> dict[str, Any]:
    from samebits.tools.guard import NotExact
    from samebits.tools.rl.child import Plan, sides
    from samebits.tools.rl.loop import Loop
    from samebits.tools.schema.errors import UserError
    from samebits.tools.schema.experiment import Experiment

    experiment = Experiment.model_validate(
        {
            "device": "cpu",
            "rollout": {"model": model, "max_model_len": 64, "engine": {"max_num_batched_tokens": 4096}},
            "trainer": {"layout": "packed", "micro_batch": 8},
            "rl": {"digits": (2, 3), "prompts": 2, "group": 2, "rate": 1e-2, "read_back_every": 1},
        }
    )
    plan = Plan(
        part="loop",
        experiment=experiment,
        device="cpu",
        folder=str(folder),
        events=os.devnull,
        model=model,
        arm="exact",
        kernels="vllm",
    )
    engine, policy, task = sides(plan, {"max_logprobs": 8})

    def loop(**changes: Any) -> Loop:
        changed = experiment.model_copy(update={"rl": experiment.rl.model_copy(update=changes)})
        made = Loop.of("exact", changed, engine, policy, task, 0, folder)
        made.step = engine.version
        return made

    def said(step: Any) -> str:
        try:
            step()
        except (UserError, NotExact) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    found: dict[str, Any] = {"plain": loop().one_step().gap.exact}
    found["head"] = _head(engine, policy, task)
    rpc, own_sample = engine.llm.collective_rpc, engine.sample

    def loses_one(method: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(method, "__name__", "") == "reload":
            (state,) = kwargs["args"]
            kwargs["args"] = ({name: t for name, t in state.items() if "layers.1.mlp.down_proj" not in name},)
        return rpc(method, *args, **kwargs)

    engine.llm.collective_rpc = loses_one
    found["lost, read back"] = said(loop().one_step)
    unread = loop(read_back_every=0)
    found["lost, not read back"] = [said(unread.one_step), said(unread.one_step)]
    engine.llm.collective_rpc = rpc
    policy.push(engine.llm)
    found["whole again"] = said(loop().one_step)
    for name, change in {"nan": _nan, "no valid token": _none_valid, "long": _long}.items():
        type(engine).sample = lambda _self, *args, change=change, **kwargs: change(own_sample(*args, **kwargs))
        before = policy.digest()
        found[name] = [said(loop().one_step), policy.digest() == before]
    return found


def _head(engine: Any, policy: Any, task: Any) -> bool:
    """The engine's best logprobs are the trainer's own, bit for bit."""
    import torch

    from samebits.tools.rl.task import draw

    drawn = engine.sample(draw(task, 2, 0), [1, 2], new_tokens=4, temperature=1.0, top=8)
    rows = []
    for sequence in drawn.data.sequences:
        logits = policy.side.module(
            input_ids=torch.tensor([sequence.tokens]), position_ids=torch.arange(len(sequence.tokens))[None]
        ).logits[0]
        rows.append(logits.detach().float().log_softmax(-1)[list(sequence.scored)])
    best = torch.cat(rows).topk(8, -1)
    head = drawn.head
    gathered = torch.cat(rows).gather(1, head.id_NK)
    return bool(torch.equal(head.logprob_NK, best.values) and torch.equal(gathered, head.logprob_NK))


def _nan(drawn: Any) -> Any:
    drawn.data.logprob_N[2] = float("nan")
    return drawn


def _none_valid(drawn: Any) -> Any:
    drawn.data.valid_N[:] = False
    return drawn


def _long(drawn: Any) -> Any:
    from samebits.tools.sides.protocol import Sequence

    first = drawn.data.sequences[0]
    drawn.data.sequences[0] = Sequence(first.prompt + [2] * 200, first.sampled)
    return drawn


if __name__ == "__main__":
    answer = main(sys.argv[1], Path(sys.argv[2]))
    print(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)
