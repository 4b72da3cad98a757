"""The engine's arguments against those of a lock: which of them can change the bits of a sampled token's logprob.

An argument that nobody listed here can: it is compared.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Mapping
from typing import Any

from samebits.kernels.adapters.setup import machine

Values = Mapping[str, Any]
KEYS = {"dtype": "dtype", "max_model_len": "max_model_len", "enforce_eager": "eager", "logprobs_mode": "logprobs"}
"""Those that samebits.toml has a key of [rollout] for."""
NO_BIT = {
    *("disable_log_stats", "served_model_name", "use_tqdm_on_load"),  # what is said
    *("skip_tokenizer_init", "tokenizer", "tokenizer_mode", "tokenizer_revision"),  # text; the bits are of token ids
    *("model", "download_dir", "hf_token"),  # where weights come from: no lock is about weights
    "seed",  # which token is drawn, not what its logprob is
    "max_logprobs",  # how many a request may ask for
}
"""Not compared."""
COVERED = {
    "max_num_batched_tokens": ("batch", "chunked_prefill"),
    "enable_chunked_prefill": ("chunked_prefill",),
    "enable_prefix_caching": ("prefix_hit",),
    "max_num_seqs": ("batch", "graph_buckets"),
    # How much memory: how many sequences run together, and which of them have to wait.
    "gpu_memory_utilization": ("batch", "preemption"),
    "kv_cache_memory_bytes": ("batch", "preemption"),
    "num_gpu_blocks_override": ("batch", "preemption"),
    "enforce_eager": ("eager_graph",),
}
"""Axes of the gate that vary what the argument decides: not compared where the lock has all of them."""
USUAL: Values = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "kv_cache_dtype": "auto",
    "load_format": "auto",
    "trust_remote_code": False,
    "enable_lora": False,
    "enable_expert_parallel": False,
    "enable_sleep_mode": False,
}
"""vLLM's own values: given or not is the same. None is "not given" everywhere."""
LONGEST = 60
"""Characters of a value in a message."""


def private(name: str, value: object) -> bool:
    """Whether nobody else may read it. A number is no secret: max_num_batched_tokens only looks like one."""
    return machine.private(name) and isinstance(value, str)


def changed(settings: Mapping[str, str], axes: Container[str], options: Values, whole: bool = True) -> list[str]:
    """What differs and can change a bit, a line each.

    Args:
        settings: [rollout] of the lock; "engine" is a Python literal.
        axes: proved ones.
        options: keyword arguments of vllm.LLM.
        whole: these are all; False: nothing is known of those that are not named.

    Raises:
        ValueError: the lock's "engine" is no mapping.
    """
    given = {name: value for name, value in options.items() if value is not None}
    lines = _keys(settings, axes, given)
    then = _engine(settings)
    names = set(options) | (set(then) if whole else set())
    needless = {"graph_buckets"} if given.get("enforce_eager") else set[str]()  # an eager engine has no graphs
    for name in sorted(names - NO_BIT - set(KEYS)):
        before, now = (values.get(name, USUAL.get(name)) for values in (then, given))
        if before == now or private(name, now) or _covered(name, axes, needless):
            continue
        lines.append(f"[rollout.engine] {name}: proved {_said(before)}, now {_said(now)}")
    return lines


def _keys(settings: Mapping[str, str], axes: Container[str], given: Values) -> list[str]:
    values = {"eager": str(bool(given.get("enforce_eager")))}
    if "dtype" in given and given["dtype"] != "auto":
        values["dtype"] = str(given["dtype"]).removeprefix("torch.")
    if "logprobs_mode" in given:
        values["logprobs"] = str(given["logprobs_mode"]).removesuffix("_logprobs")
    values["max_model_len"] = str(given.get("max_model_len", "the model's own"))
    lines = []
    for key, value in values.items():
        then = settings.get(key)
        if value == then or (key == "max_model_len" and _within(value, then)):
            continue
        if key == "eager" and _covered("enforce_eager", axes, set()):
            continue
        lines.append(f"[rollout] {key}: proved {_said(then)}, now {value}")
    return lines


def _within(now: str, then: str | None) -> bool:
    """Contexts up to a length were proved, and shorter ones are among them."""
    return now.isdecimal() and (then or "").isdecimal() and int(now) <= int(then or 0)


def _covered(name: str, axes: Container[str], needless: set[str]) -> bool:
    return name in COVERED and all(axis in axes for axis in COVERED[name] if axis not in needless)


def _engine(settings: Mapping[str, str]) -> dict[str, Any]:
    try:
        found = ast.literal_eval(settings.get("engine", "{}"))
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError("no Python literal") from error
    if not isinstance(found, dict):
        raise ValueError("no mapping")
    return {str(name): value for name, value in found.items()}


def _said(value: object) -> str:
    if value is None:
        return "without"
    text = " ".join(str(value).split())
    return text if len(text) <= LONGEST else text[: LONGEST - 4] + " ..."
