"""Starting the engine and driving it one step at a time."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from samebits.tools.schema.errors import UserError
from samebits.tools.sides.vllm import plugin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from samebits.tools.schema.experiment import Rollout

OWN_SETTINGS = ("model", "dtype", "enforce_eager", "max_model_len", "logprobs_mode", "skip_tokenizer_init")
"""LLM arguments that the experiment file sets by other keys."""
UNKNOWN_MODEL = ("Model architecture", "No model architectures", "does not recognize this architecture")
"""Words of vLLM and transformers about a config.json that names a model they do not have."""


@dataclass(slots=True, frozen=True)
class Request:
    """What is asked of the engine once."""

    name: str
    prompt: list[int]
    params: Any
    """vllm.SamplingParams"""


def start(config: Rollout, model: str, request: plugin.PluginRequest) -> Any:
    """A `vllm.LLM` with the samebits plugin at work in its workers.

    Raises:
        UserError: settings the engine does not take, a model it cannot load, an engine that dies on the way up.
    """
    for key in config.engine:
        if key in OWN_SETTINGS:
            raise UserError(f"[rollout.engine] {key}", "is set by another key of [rollout]", "remove it there")
    from vllm import LLM

    settings: dict[str, Any] = {
        "dtype": config.dtype,
        "enforce_eager": config.eager,
        "max_model_len": config.max_model_len,
        "logprobs_mode": f"{config.logprobs}_logprobs",
        "skip_tokenizer_init": True,
        "seed": 0,
        "disable_log_stats": True,
    }
    if request.taps:
        from samebits.tools.sides.vllm.taps import digest

        # Part of the compile cache's key: a graph with other taps must not come out of it.
        settings["additional_config"] = {"samebits_taps": digest(request.tap_modules)}
    # Every process of the engine has read the request by the time it is up.
    with tempfile.TemporaryDirectory(prefix="samebits-") as folder:
        _name_request(request, Path(folder))
        try:
            return LLM(model, **(settings | dict(config.engine)))
        except UserError:
            raise
        except Exception as error:  # vLLM raises every kind for what it cannot run
            traceback.print_exc()
            raise refusal(error, model) from error
        finally:
            del os.environ[plugin.VARIABLE]


def _name_request(request: plugin.PluginRequest, folder: Path) -> None:
    path = folder / "request.json"
    path.write_text(request.model_dump_json(), encoding="utf-8")
    os.environ[plugin.VARIABLE] = str(path)
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and "samebits" not in allowed.split(","):
        raise UserError(
            f"VLLM_PLUGINS={allowed}", "keeps the samebits plugin out of the engine", "add samebits to it, or unset it"
        )


def refusal(error: BaseException, model: str) -> UserError:
    """What a failed start says to its user."""
    cause = error
    while (inner := cause.__cause__ or cause.__context__) is not None and not isinstance(inner, UserError):
        cause = inner
    if isinstance(inner, UserError):
        return inner
    text = str(error) or type(error).__name__
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = shorten(" ".join(lines[:4]), 600, placeholder=" ...")
    if cause is not error:
        first = shorten((str(cause).strip().splitlines() or [""])[0], 300, placeholder=" ...")
        reason += f" (first cause: {type(cause).__name__}: {first})"
    unknown = any(words in f"{text} {cause}" for words in UNKNOWN_MODEL)
    place = (
        f"give a model that this vLLM knows: {Path(model) / 'config.json'} names its architecture"
        if unknown
        else "correct [rollout] in samebits.toml"
    )
    return UserError(
        f"the vLLM engine with {model}",
        f"did not start: {reason}",
        f"{place}; the whole traceback is in the side's log",
    )


def scheduler(llm: Any) -> Any:
    """The live scheduler (the engine core is in this process)."""
    return llm.llm_engine.engine_core.engine_core.scheduler


def reset_cache(llm: Any) -> None:
    """Forget every cached prefix."""
    assert llm.reset_prefix_cache(), "the prefix cache cannot be reset: requests are still running"


def drive(
    llm: Any, requests: Iterable[Request], concurrency: int | None, whole_prompts: bool = False
) -> dict[str, Any]:
    """Run every request to its end; RequestOutput by name.

    Args:
        concurrency: most requests in flight; None: as many as the engine runs.
        whole_prompts: admit requests so that no prompt has to be cut (seeded sampling on CPU cannot be cut).
    """
    engine = llm.llm_engine
    limit = (
        min(concurrency or 1 << 30, scheduler(llm).max_num_running_reqs) if whole_prompts else concurrency or 1 << 30
    )
    budget = scheduler(llm).max_num_scheduled_tokens
    waiting, running, done = deque(requests), set[str](), dict[str, Any]()
    try:
        while waiting or running:
            planned = len(running)
            while (
                waiting
                and len(running) < limit
                and not (whole_prompts and running and planned + len(waiting[0].prompt) > budget)
            ):
                request = waiting.popleft()
                planned += len(request.prompt)
                engine.add_request(request.name, {"prompt_token_ids": request.prompt}, request.params)
                running.add(request.name)
            for output in engine.step():
                if output.finished:
                    done[output.request_id] = output
                    running.discard(output.request_id)
    except BaseException:
        engine.abort_request(list(running))
        raise
    return done


def sampled_logprobs(output: Any) -> list[float]:
    """The logprob the engine reports for each sampled token of a finished request."""
    completion = output.outputs[0]
    return [step[token].logprob for step, token in zip(completion.logprobs, completion.token_ids, strict=True)]
