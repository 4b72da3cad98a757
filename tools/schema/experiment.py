"""samebits.toml: one experiment, read by every verb."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from samebits.tools.schema.base import Model

Kernels = Literal["none", "vllm", "samebits"] | tuple[str, ...]
Scalar = str | int | float | bool


class Rollout(Model):
    """The side that generates the tokens and reports their logprobs."""

    side: str = "vllm"
    """"vllm", "transformers", "python:package.module:function", or "file:PATH" (JSONL or parquet rows)."""
    model: str = ""
    """Folder of a Hugging Face causal LM (config.json and safetensors)."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Dtype of weights and activations."""
    kernels: Kernels = "none"
    """What is put under this side: "none", a table, or candidate folders."""
    eager: bool = False
    """True: enforce_eager. False is how vLLM runs by default (compiled, graphs on CUDA); it changes the numbers."""
    logprobs: Literal["raw", "processed"] = "processed"
    """vLLM's logprobs_mode: before or after temperature, top-p and top-k."""
    max_model_len: int = Field(default=2048, ge=8)
    """Longest prompt plus continuation, tokens."""
    env: dict[str, str] = {}
    """Environment of the side's process, set before any import."""
    engine: dict[str, Scalar] = {}
    """Further keyword arguments of vllm.LLM, or of the python: factory."""


class Trainer(Model):
    """The side that recomputes the logprob of each sampled token before the update."""

    side: str = "transformers"
    """"transformers" or "python:package.module:function"."""
    model: str = ""
    """Folder of the model; empty: the rollout's."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Dtype of weights and activations."""
    kernels: Kernels = "none"
    """What the patch engine puts under this side."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """transformers' attn_implementation."""
    layout: Literal["single", "padded", "packed"] = "single"
    """Sequences one by one, right-padded micro-batches, or packed into one row."""
    micro_batch: int = Field(default=1, ge=1)
    """Sequences per forward when padded or packed."""
    logprob: Literal["logsumexp", "log_softmax"] = "logsumexp"
    """logits[token] - logsumexp(logits) in float32, as TRL and verl do, or log_softmax in float32."""
    env: dict[str, str] = {}
    """Environment of the side's process, set before any import."""
    options: dict[str, Scalar] = {}
    """Keyword arguments of the python: factory."""


class Workload(Model):
    """Which tokens are asked of the rollout side."""

    prompts: int = Field(default=32, ge=1)
    """Number of prompts, when no file is given: random token ids."""
    prompt_tokens: tuple[int, int] = (3, 200)
    """Shortest and longest random prompt; lengths are spread evenly."""
    new_tokens: int = Field(default=32, ge=1)
    """Sampled tokens per prompt."""
    file: str = ""
    """JSONL of {"prompt_ids": [...]} or {"prompt": "text"} rows (text needs a tokenizer in the model folder)."""
    temperature: float = Field(default=1.0, ge=0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0 is off."""
    seed: int = 0


class Capture(Model):
    """What is recorded."""

    level: Literal["module", "operator"] = "module"
    layers: Literal["all"] | tuple[int, ...] = "all"
    sequences: Annotated[int, Field(ge=1)] | Literal["all"] = "all"
    """How many sequences of the rollout are captured, from the first."""
    store: Literal["digest", "tensors"] = "digest"
    budget_mib: int = Field(default=4096, ge=1)
    """Refuse a capture that would hold more than this in memory and on disk."""


class Gate(Model):
    """What the regression gate asks for."""

    axes: tuple[str, ...] = ()
    """Empty: all there are; those that cannot run here say why."""
    require: tuple[str, ...] = ()
    """Axes that must have run; "not run" is then a failure."""
    min_tokens: int = Field(default=64, ge=1)
    """An axis that compared fewer tokens proves nothing."""


class Pool(Model):
    """Where the work runs."""

    backend: Literal["auto", "embedded", "serve", "ray"] = "auto"
    """"embedded": each server or command runs its own jobs. "serve": the daemon of `samebits pool serve` does, and must
    run. "auto": the daemon where it runs, else embedded. "ray": as auto, each job on a node of a Ray cluster."""
    ray_address: str = ""
    """HOST:PORT of the cluster's head; empty: RAY_ADDRESS, or the cluster that this machine is a node of."""
    worker_python: str = ""
    """Interpreter that has torch, vllm and samebits; empty: the one samebits itself runs in."""
    time_limit_s: int = Field(default=3600, ge=1)
    """A job over this is ended as timed out."""
    memory_limit_mib: int = Field(default=0, ge=0)
    """A job whose processes together hold more memory of their own than this is ended; 0: no limit."""


class Experiment(Model):
    """The whole file."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    rollout: Rollout = Rollout()
    trainer: Trainer = Trainer()
    workload: Workload = Workload()
    capture: Capture = Capture()
    gate: Gate = Gate()
    pool: Pool = Pool()

    @property
    def trainer_model(self) -> str:
        """The trainer's model folder: its own, or the rollout's."""
        return self.trainer.model or self.rollout.model
