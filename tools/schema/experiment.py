"""samebits.toml: one experiment, read by every verb."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from samebits.tools.schema.base import Model

Kernels = Literal["none", "vllm", "samebits"] | tuple[str, ...]
Scalar = str | int | float | bool


def _known(whole: tuple[str, ...], beginnings: tuple[str, ...]) -> AfterValidator:
    """One of these words, or something behind one of these beginnings."""
    *first, last = (f"'{word}'" for word in (*whole, *(f"{each}..." for each in beginnings)))

    def check(side: str) -> str:
        if side in whole or any(side.startswith(each) and side != each for each in beginnings):
            return side
        raise PydanticCustomError("side", "Input should be {words}", {"words": f"{', '.join(first)} or {last}"})

    return AfterValidator(check)


def _band(band: tuple[float, float]) -> tuple[float, float]:
    if not 0 <= band[0] <= band[1]:
        raise PydanticCustomError("band", "Input should be [low, high] with 0 <= low <= high")
    return band


Rate = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Limit = Annotated[float, Field(gt=0)]
"""Infinity: nothing reaches it."""
Band = Annotated[tuple[float, float], AfterValidator(_band)]


class Rollout(Model):
    """The side that generates the tokens and reports their logprobs."""

    side: Annotated[str, _known(("vllm", "transformers"), ("python:", "file:"))] = "vllm"
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

    side: Annotated[str, _known(("transformers",), ("python:",))] = "transformers"
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
    coverage: Literal["fast", "full"] = "fast"
    """"full": batches of 256, more chunk sizes, lengths and places (docs/gate.md lists both)."""
    axis_limit_s: int = Field(default=900, ge=1)
    """An axis over this is timed out: no verdict, and the gate is not green."""
    min_throughput: float | None = Field(default=None, ge=0)
    """Smallest ratio of sampled tokens per second to the engine without samebits; 0: not measured. None: 0.7, and on
    CPU not measured unless `axes` or `require` names throughput."""
    sandbox: Literal["auto", "required"] = "auto"
    """Candidates under `samebits build`. "required": an error where this machine gives no sandbox; "auto": the answer
    says "UNSANDBOXED"."""


Correction = Literal["none", "is", "tis", "mis", "icepop", "geometric", "flash", "centering"]
"""What is done about rollout and trainer giving a token different probabilities: see tools/rl/corrections.py."""


class Rl(Model):
    """The loop of `samebits rl`. Its sampling temperature and seed are those of [workload]."""

    task: Literal["sort"] = "sort"
    """Answers are checked by a rule: "sort": the digits of the prompt in ascending order."""
    digits: tuple[int, int] = (4, 8)
    """Fewest and most digits of a prompt."""
    family: Literal["qwen3", "qwen3_tied", "llama", "qwen3_moe"] = "qwen3"
    """Of the random model that is made when [rollout] model is empty."""
    shape: Literal["tiny", "0.6b", "1.7b"] = "tiny"
    """Its size: 4 layers of 256, or those of Qwen3-0.6B and Qwen3-1.7B."""
    warmup_steps: int = Field(default=60, ge=0)
    """Supervised updates on right answers before the loop, so that reward can move."""
    warmup_rate: Rate = 1e-3
    steps: int = Field(default=100, ge=1)
    """Updates of the loop."""
    prompts: int = Field(default=8, ge=1)
    """Different prompts of a step."""
    group: int = Field(default=8, ge=2)
    """Answers per prompt; the baseline of an answer is the mean reward of its group."""
    scale_by_std: bool = False
    """GRPO's division of the advantage by the group's standard deviation."""
    rate: Rate = 1e-4
    """Learning rate of AdamW (float32 master weights, no weight decay)."""
    clip: Limit = 1.0
    """Largest norm of the gradient; larger ones are scaled down. inf: none is."""
    lag: int = Field(default=0, ge=0)
    """Updates between sampling a batch and training on it."""
    correction: Correction = "none"
    """Importance weights of the loss."""
    cap: Limit = 2.0
    """tis: largest ratio."""
    band: Band = (0.5, 2.0)
    """mis, icepop: ratios of a token outside are dropped."""
    geometric_band: Band = (0.99, 1.01)
    """geometric: sequences whose geometric mean ratio lies outside are dropped."""
    delta: Limit = 3e-3
    """flash: sequences whose mean binary KL is above are dropped."""
    top: int = Field(default=32, ge=1)
    """centering: tokens per position whose logprobs the engine returns."""
    arms: tuple[Literal["stock", "exact"], ...] = ("stock", "exact")
    """stock: the two sides as [rollout] and [trainer] say. exact: with `kernels` under both."""
    kernels: Literal["auto", "vllm", "samebits"] = "auto"
    """Table of the exact arm; auto: "vllm" on CPU, "samebits" on CUDA."""
    lags: tuple[int, ...] = (0, 1, 4, 16, 64)
    """Of `samebits rl --stale`."""
    batches: int = Field(default=16, ge=2)
    """Of `samebits rl --corrections`: rollouts, each with another seed."""
    read_back_every: int = Field(default=1, ge=0)
    """After every so many pushes all weights are read back out of the engine and compared; 0: never."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints; a killed run goes on from the last one."""
    keep_checkpoint: bool = False
    """Write one after the last step too, and keep it; else an arm that ended has none."""
    tensorboard: bool = False
    """Write TensorBoard event files too (pip install "samebits[tensorboard]")."""


class Pool(Model):
    """Where the work runs."""

    backend: Literal["auto", "embedded", "serve", "ray"] = "auto"
    """"embedded": each server or command runs its own jobs. "serve": the daemon of `samebits pool serve` does, and must
    run. "auto": the daemon where it runs, else embedded. "ray": as auto, each job on a node of a Ray cluster."""
    ray_address: str = ""
    """HOST:PORT of the cluster's head; empty: RAY_ADDRESS, or the cluster that this machine is a node of."""
    worker_python: str = ""
    """Interpreter that has torch, vllm and samebits; empty: the one samebits itself runs in. With Ray: on the node."""
    time_limit_s: int = Field(default=3600, ge=1)
    """A job over this is ended as timed out."""
    memory_limit_mib: int = Field(default=0, ge=0)
    """A job whose processes together hold more memory of their own than this is ended; 0: no limit."""
    phase_time_limit_s: dict[str, Annotated[int, Field(ge=1)]] = {}
    """Limits of single phases (the first word of a progress line, such as open, capture, prove); "*": any other."""
    phase_memory_limit_mib: dict[str, Annotated[int, Field(ge=1)]] = {}
    """The same for memory."""
    heartbeat_limit_s: int = Field(default=600, ge=0)
    """A worker that gives no heartbeat for so long is ended; 0: that is only said. A single call that holds Python's
    lock all the time gives none either."""


class Experiment(Model):
    """The whole file."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    rollout: Rollout = Rollout()
    trainer: Trainer = Trainer()
    workload: Workload = Workload()
    capture: Capture = Capture()
    gate: Gate = Gate()
    rl: Rl = Rl()
    pool: Pool = Pool()

    @property
    def trainer_model(self) -> str:
        """The trainer's model folder: its own, or the rollout's."""
        return self.trainer.model or self.rollout.model
