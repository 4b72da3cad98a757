"""Engines and a trainer as child processes: what throughput.py and rollout_exact.py share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil
from common import FAMILY, READY, SHAPES

HERE = Path(__file__).resolve().parent
ARMS: dict[str, dict[str, str]] = {
    "default": {},
    "batch_invariant": {"VLLM_BATCH_INVARIANT": "1"},
    "samebits": {"SAMEBITS_KERNELS": "samebits"},
}
"""Environment of each arm; everything else is the same."""
COMMON = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}


def write_config(folder: Path, shape: str) -> None:
    """The shape's config.json alone, for engines with dummy weights."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "tie_word_embeddings": FAMILY[shape] == "qwen3_tied",
    }
    (folder / "config.json").write_text(json.dumps(SHAPES[shape] | config), encoding="utf-8")
    (folder / READY).touch()


@dataclass(slots=True)
class Engine:
    """A child with one engine. `start` returns at once; `ready` waits until it is up."""

    name: str
    process: subprocess.Popen[str]
    reply: IO[str]
    log: Path
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def start(
        cls, name: str, settings: dict[str, Any], env: dict[str, str], work: Path, extra: dict[str, str]
    ) -> Engine:
        """Its own process; its log and its compile cache in `work`."""
        reading, writing = os.pipe()
        log = work / f"{name}.log"
        own = env | COMMON | {"VLLM_CACHE_ROOT": str(work / f"cache-{name}")} | extra
        command = [sys.executable, str(HERE / "engine_child.py"), "--settings", json.dumps(settings)]
        with log.open("w") as out:
            process = subprocess.Popen(
                [*command, "--reply", str(writing)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                env=own,
                pass_fds=(writing,),
            )
        os.close(writing)
        return cls(name, process, os.fdopen(reading), log)

    def answer(self) -> dict[str, Any]:
        """The next reply.

        Raises:
            RuntimeError: the child failed; the end of its log.
        """
        line = self.reply.readline()
        found: dict[str, Any] = json.loads(line) if line else {"error": "ended"}
        if "error" in found:
            tail = self.log.read_text(encoding="utf-8", errors="replace")[-3000:]
            raise RuntimeError(f"{self.name}: {found['error']}\n{tail}")
        return found

    def ready(self) -> float:
        """Seconds that the engine took to come up."""
        return float(self.answer()["seconds"])

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        """One order, and its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do} | order) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def pin(self, cpus: set[int]) -> None:
        """All threads of the child and of its children onto these processors; threads they start later follow."""
        child = psutil.Process(self.process.pid)
        for process in (child, *child.children(recursive=True)):
            for thread in process.threads():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread.id, cpus)

    def end(self) -> None:
        """Let the child end, without waiting for it."""
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()

    def stop(self) -> None:
        """End the child."""
        self.end()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def score(
    model: Path, files: list[Path], device: str, env: dict[str, str], out: Path, seconds: float = 0.0
) -> dict[str, Any]:
    """The trainer with the table "samebits" over the tokens of these files; see score_child.py."""
    command = [sys.executable, str(HERE / "score_child.py"), "--model", str(model), "--device", device]
    command += ["--seconds", str(seconds), "--out", str(out), *map(str, files)]
    subprocess.run(command, env=env | COMMON, check=True)
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found
