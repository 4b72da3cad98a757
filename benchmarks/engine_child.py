"""One vLLM engine in a process of its own, asked by lines of JSON on standard input; see engines.py.

python benchmarks/engine_child.py --settings JSON --reply FILE_DESCRIPTOR
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import traceback
from collections import deque
from pathlib import Path
from typing import Any

import torch
from common import READY


def prompts_of(seed: int, count: int, shortest: int, longest: int, shared: int, vocabulary: int) -> list[list[int]]:
    """Random token ids, lengths spread evenly; every second prompt begins with the same `shared` tokens."""
    draw = torch.Generator().manual_seed(seed)
    begin = torch.randint(10, vocabulary, (shared,), generator=draw).tolist()
    lengths = torch.linspace(shortest, longest, count).round().long()[torch.randperm(count, generator=draw)]
    found = []
    for place, length in enumerate(lengths.tolist()):
        own = torch.randint(10, vocabulary, (length,), generator=draw).tolist()
        found.append(begin[: length - 1] + own[min(shared, length - 1) :] if place % 2 else own)
    return found


def _row(prompt: list[int], done: Any, temperature: float) -> dict[str, Any]:
    """One sequence as score_child.py reads it."""
    values = [step[token].logprob for step, token in zip(done.logprobs, done.token_ids, strict=True)]
    return {
        "prompt": prompt,
        "sampled": list(done.token_ids),
        "logprobs": torch.tensor(values, dtype=torch.float32),
        "temperature": temperature,
    }


class Child:
    """The engine and what it generated."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from vllm import LLM

        # The model may be written while this process imports.
        while not (Path(settings["model"]) / READY).exists():
            time.sleep(0.2)
        self.llm = LLM(**settings)
        self.kept: list[dict[str, Any]] = []
        self.count = 0

    def generate(self, prompts: dict[str, int], new_tokens: int, concurrency: int, **how: Any) -> dict[str, Any]:
        """Run all prompts, at most `concurrency` in flight; seconds, sampled tokens, and the median and the longest
        step in ms."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        temperature, keep = float(how.get("temperature", 1.0)), bool(how.get("keep", True))
        params = SamplingParams(
            temperature=temperature,
            max_tokens=new_tokens,
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        engine, waiting, running, tokens = self.llm.llm_engine, deque(prompts_of(**prompts)), 0, 0
        by_name: dict[str, list[int]] = {}
        finished: list[Any] = []
        steps: list[float] = []
        begun = time.perf_counter()
        while waiting or running:
            while waiting and running < concurrency:
                prompt, name = waiting.popleft(), str(self.count)
                self.count += 1
                running += 1
                by_name[name] = prompt
                engine.add_request(name, {"prompt_token_ids": prompt}, params)
            before = time.perf_counter()
            outputs = engine.step()
            steps.append(time.perf_counter() - before)
            for output in outputs:
                if not output.finished:
                    continue
                running -= 1
                tokens += len(output.outputs[0].token_ids)
                finished.append(output)
        seconds = time.perf_counter() - begun
        # Not before: what one arm keeps must not cost it time.
        if keep:
            self.kept += [_row(by_name[output.request_id], output.outputs[0], temperature) for output in finished]
        middle, most = (round(1e3 * of(steps), 3) for of in (statistics.median, max))
        return {"seconds": seconds, "tokens": tokens, "median_step_ms": middle, "longest_step_ms": most}

    def save(self, path: str) -> dict[str, Any]:
        """Everything kept so far, into a file."""
        torch.save(self.kept, path)
        count = sum(len(row["sampled"]) for row in self.kept)
        self.kept = []
        return {"tokens": count}

    def read_back(self) -> dict[str, Any]:
        """What was replaced and what ran."""
        from samebits.kernels.adapters.vllm.read_back import read_back

        found: dict[str, Any] = self.llm.collective_rpc(read_back)[0]
        return found

    def profile(self, **work: Any) -> dict[str, Any]:
        """Kernels of one `generate`, by name: (count, microseconds)."""
        from samebits.kernels.adapters.vllm.read_back import watch, watched

        self.llm.collective_rpc(watch)
        self.generate(**work)
        return {"kernels": self.llm.collective_rpc(watched)[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", required=True)
    parser.add_argument("--reply", type=int, required=True)
    options = parser.parse_args()
    reply = os.fdopen(options.reply, "w", buffering=1)
    try:
        begun = time.perf_counter()
        child = Child(json.loads(options.settings))
        print(json.dumps({"seconds": time.perf_counter() - begun}), file=reply)
        for line in sys.stdin:
            order = json.loads(line)
            answer = getattr(child, order.pop("do"))(**order)
            print(json.dumps(answer), file=reply)
    except BaseException as error:
        traceback.print_exc()
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=reply)
        raise


if __name__ == "__main__":
    main()
