"""The main job on a real shape and a GPU: measure, a side against itself, diff and minimize, with their times.

    python benchmarks/main_job.py --out FOLDER [--shape 1.7b] [--layers 28] [--prompts 8] [--runner v1] [--total 560]

Works without an installed samebits. FOLDER gets main_job.json, written again after every verb, and each verb's answer
and manifest; captures and repros stay in --work. A verb over its seconds is stopped, said so, and the next one goes on.
Weights are random, so only the sameness of bits is meant by the numbers, not the size of a gap on a trained model.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import SHAPES, linked, write_model

EXPERIMENT = """device = "{device}"
[rollout]
model = "{model}"
eager = {eager}
max_model_len = 2048
{engine}
[workload]
prompts = {prompts}
prompt_tokens = [5, 120]
new_tokens = 32
"""
ENGINE = {"cuda": f"engine = {{ gpu_memory_utilization = 0.2, kv_cache_memory_bytes = {8 << 30} }}", "cpu": ""}
"""With a size given the engine does not profile memory, which another engine that starts meanwhile would disturb."""
AXES = "repeat,batch,decode_prefill,chunked_prefill,prefix_hit,eager_compiled"
VERBS = ("measure", "itself", "diff", "minimize")
RUNNERS = {"v1": "0", "v2": "1"}
GRACE_S = 40.0
"""A stopped verb ends its sides, then itself; after this it is killed."""
LOG_END = 3000
"""Characters of a log that go into main_job.json where a verb failed."""


@dataclass(slots=True)
class Runs:
    """What ran so far, and what is left of the time."""

    out: Path
    work: Path
    env: dict[str, str]
    seconds: float
    ends: float
    """On time.monotonic."""
    facts: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)

    def run(self, name: str, arguments: list[str]) -> None:
        """One verb as a user runs it; its outcome into FOLDER/main_job.json."""
        budget = min(self.seconds, self.ends - time.monotonic() - GRACE_S)
        if budget < 1:
            self.add({"name": name, "exit": None, "seconds": 0, "said": "not run: no time was left"})
            return
        begun = time.monotonic()
        job = self.work / name
        command = [sys.executable, "-m", "samebits.server.cli.entry", *arguments, "--json", "-o", str(job)]
        with (self.work / f"{name}.out").open("w+") as answer, (self.work / f"{name}.err").open("w+") as errors:
            process = subprocess.Popen(command, stdout=answer, stderr=errors, env=self.env)
            late = _late(process, budget)
            answer.seek(0)
            errors.seek(0)
            text, complaint = answer.read(), errors.read()
        row: dict[str, Any] = {"name": name, "exit": process.returncode}
        row |= {"seconds": round(time.monotonic() - begun, 1)}
        try:
            outcome = json.loads(text)
            row["said"] = outcome.get("result", {}).get("summary") or outcome.get("message") or outcome.get("state")
            (self.out / f"{name}.json").write_text(text, encoding="utf-8")
        except ValueError:
            row["said"] = complaint[-LOG_END:]
        if late:
            row["said"] = f"stopped: over its {budget:.0f} s"
        if late or process.returncode not in (0, 1):
            row["logs"] = _logs(job)
        for manifest in sorted(job.glob("*/manifest.json")):
            if manifest.parent.name in ("gap", "divergence", "repro"):
                shutil.copyfile(manifest, self.out / f"{name}.{manifest.parent.name}.json")
        self.add(row)

    def add(self, row: dict[str, Any]) -> None:
        """One more row, into the file at once."""
        self.rows.append(row)
        whole = self.facts | {"verbs": self.rows}
        (self.out / "main_job.json").write_text(json.dumps(whole, indent=1), encoding="utf-8")
        print(f"== {row['name']}: exit {row['exit']}, {row['seconds']} s\n{row['said']}", flush=True)


def _late(process: subprocess.Popen[bytes], budget: float) -> bool:
    """Wait for it; stop it when its time is over, as Ctrl-C does."""
    try:
        process.wait(budget)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return True
    return False


def _logs(job: Path) -> dict[str, str]:
    """The last events, and the ends of the logs of a job and its sides."""
    files = [job / "events.jsonl", job / "log.txt", *sorted(job.glob("sides/*.log"))]
    return {
        str(file.relative_to(job)): file.read_text(encoding="utf-8", errors="replace")[-LOG_END:]
        for file in files
        if file.is_file()
    }


def first_of_each_kind(divergence: Path) -> dict[str, int]:
    """Kind -> its first operator in the work list; empty: there is no list."""
    manifest = divergence / "manifest.json"
    first: dict[str, int] = {}
    if manifest.is_file():
        for number, item in enumerate(json.loads(manifest.read_text(encoding="utf-8"))["work"]):
            first.setdefault(item["kind"], number)
    return first


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, help="model, captures, repros; default: a temporary folder")
    parser.add_argument("--shape", choices=SHAPES, default="1.7b")
    parser.add_argument("--layers", type=int, default=0, help="0: as many as the shape has")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--runner", choices=RUNNERS, help="of vLLM; default: the one it takes")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--axes", default=AXES, help="of measure")
    parser.add_argument("--max-operators", type=int, default=6, help="of diff: proven one by one")
    parser.add_argument("--seconds", type=float, default=300.0, help="wall time of one verb; one over it is stopped")
    parser.add_argument("--total", type=float, default=3600.0, help="wall time of all, the model's writing included")
    parser.add_argument("--only", nargs="*", choices=VERBS, default=list(VERBS), help="minimize needs diff")
    return parser.parse_args()


def main() -> None:
    """Run everything; figures into FOLDER/main_job.json."""
    options = parsed()
    # Also as a background job of a shell, which starts those deaf to it: verbs are stopped by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    begun = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    work: Path = (options.work or Path(tempfile.mkdtemp(prefix="main-job-"))).resolve()
    env = linked(work / "links")
    if options.runner:
        env["VLLM_USE_V2_MODEL_RUNNER"] = RUNNERS[options.runner]
    model = work / f"model-{options.shape}-{options.layers}"
    write_model(model, options.shape, options.device, env, options.layers)
    print(f"model written in {time.monotonic() - begun:.0f} s", flush=True)
    facts = {key: getattr(options, key) for key in ("shape", "layers", "device", "runner", "prompts", "max_operators")}
    verbs = Path(tempfile.mkdtemp(prefix="verbs-", dir=work))
    for name, eager in (("default", "false"), ("eager", "true")):
        text = EXPERIMENT.format(
            device=options.device, model=model, eager=eager, engine=ENGINE[options.device], prompts=options.prompts
        )
        (verbs / f"{name}.toml").write_text(text, encoding="utf-8")
    default, eagerly = (["-c", str(verbs / f"{name}.toml")] for name in ("default", "eager"))
    runs = Runs(options.out, verbs, env, options.seconds, begun + options.total, facts)
    # One after the other: two engines that start together disturb each other's memory profiling.
    if "measure" in options.only:
        runs.run("measure", ["measure", *default, "--axes", options.axes])
    if "itself" in options.only:
        runs.run("itself", ["diff", *eagerly, "--against", "batch"])
    if "diff" in options.only:
        runs.run("diff", ["diff", *eagerly, "--max-operators", str(options.max_operators)])
    if "minimize" in options.only:
        divergence = verbs / "diff" / "divergence"
        for kind, number in first_of_each_kind(divergence).items():
            runs.run(f"minimize-{kind}", ["minimize", str(divergence), "--operator", str(number)])


if __name__ == "__main__":
    main()
