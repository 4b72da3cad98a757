"""Would this workload fit the sides? Asked of the settings and the models' config.json, before an engine is loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samebits.tools.measure.made_by import check_origin
from samebits.tools.schema.errors import UserError
from samebits.tools.sides.model_folder import read_config
from samebits.tools.sides.prompt_rows import check_tokenizer, read_prompts

if TYPE_CHECKING:
    from samebits.tools.schema.experiment import Experiment, Workload

MOST_TOKENS = 2**31 - 1
TOKEN_BYTES = 36
"""Memory of a token while a rollout is made: an int and its place in a list."""
FILE_NEXT = "shorten the workload, or give a model that takes more"
ALLOWED = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def check_request(experiment: Experiment, rollout: str | None) -> None:
    """Before an engine is loaded: a rollout that is given needs no workload, and must be of this rollout side.

    Raises:
        UserError: see `check_engine`, `check_workload` and `made_by.check_origin`.
    """
    check_engine(experiment)
    if rollout is None:
        check_workload(experiment)
    else:
        check_origin(experiment, Path(rollout).expanduser())


def check_dtypes(experiment: Experiment) -> None:
    """Sides that compute in two dtypes have no tensor with equal bits, so no operator could be told from another.

    Raises:
        UserError: both sides take their dtype from the experiment, and the two are not one.
    """
    ours, theirs = experiment.rollout, experiment.trainer
    if ours.side.startswith("python:") or theirs.side.startswith("python:") or ours.dtype == theirs.dtype:
        return
    raise UserError(
        f'[rollout] dtype = "{ours.dtype}", [trainer] dtype = "{theirs.dtype}"',
        "no tensor of the two sides can have equal bits, so no operator can be named",
        "set both to one dtype; `samebits measure` tells the gap of the two as they are",
    )


def check_engine(experiment: Experiment) -> str:
    """What the rollout engine can take; returns it in words.

    Raises:
        UserError: vLLM would refuse [rollout] max_model_len, since the model has fewer positions.
    """
    config = experiment.rollout
    if config.side != "vllm":
        return f"side {config.side!r} names no limit of its own"
    limit = None if _stretched(config.model) else _positions(config.model)
    long = config.max_model_len
    allowed = config.env.get(ALLOWED, os.environ.get(ALLOWED, "0")) not in ("", "0")
    if limit is not None and long > limit and not allowed:
        raise UserError(
            f"[rollout] max_model_len = {long}",
            f"{config.model} has {limit} positions (max_position_embeddings in its config.json)",
            f"set max_model_len to {limit} or less",
        )
    return f"max_model_len {long}, the model has {limit or 'an unnamed number of'} positions"


def check_workload(experiment: Experiment) -> str:
    """The workload against both sides; returns its size in words.

    Raises:
        UserError: impossible prompt lengths, a prompts file that is missing or has a bad row, prompts with their new
            tokens beyond max_model_len or beyond the positions of a model, more tokens in all than this machine
            could hold.
    """
    work = experiment.workload
    count, longest, words = _from_file(experiment) if work.file else _random(work)
    _check_size(count, longest, work.new_tokens)
    total = longest + work.new_tokens
    rollout, trainer = experiment.rollout, experiment.trainer
    thing = f"[workload] {total} tokens at most ({longest} of the longest prompt, {work.new_tokens} new)"
    if rollout.side in ("vllm", "transformers") and total > rollout.max_model_len:
        raise UserError(
            thing,
            f"[rollout] max_model_len is {rollout.max_model_len}",
            "raise max_model_len or shorten the workload (prompt_tokens, new_tokens)",
        )
    for role, side, model in (
        ("rollout", rollout.side, rollout.model),
        ("trainer", trainer.side, experiment.trainer_model),
    ):
        # vLLM's own limit is max_model_len, which check_engine compares with its model.
        limit = _positions(model) if side == "transformers" else None
        if limit is not None and total > limit:
            raise UserError(thing, f"the model takes {limit} ({role} side, {model})", FILE_NEXT)
    return f"{words}, {total} tokens at most with {work.new_tokens} new ones"


def _check_size(prompts: int, longest: int, new_tokens: int) -> None:
    """At most 2**31 - 1 tokens, and no more than fit in the memory of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most, tokens = min(MOST_TOKENS, memory // TOKEN_BYTES), prompts * (longest + new_tokens)
    if tokens > most:
        raise UserError(
            f"[workload] {prompts} prompts of up to {longest} + {new_tokens} tokens",
            f"{tokens} tokens in all; at most {most} here (2**31 - 1, and {memory >> 30} GiB of memory at "
            f"{TOKEN_BYTES} bytes a token)",
            "ask for fewer prompts, or fewer tokens of each",
        )


def _random(work: Workload) -> tuple[int, int, str]:
    """How many prompts, tokens of the longest, both in words."""
    shortest, longest = work.prompt_tokens
    if not 1 <= shortest <= longest:
        raise UserError(
            f"[workload] prompt_tokens = {list(work.prompt_tokens)}",
            "needs 1 <= shortest <= longest",
            "correct it in samebits.toml",
        )
    return work.prompts, longest, f"{work.prompts} random prompts of {shortest} to {longest} tokens"


def _from_file(experiment: Experiment) -> tuple[int, int, str]:
    """As `_random`. Text is not tokenized here (its length counts as 1): only whether the folder could."""
    work, model = experiment.workload, Path(experiment.rollout.model).expanduser()
    vocabulary = _config(experiment.rollout.model).get("vocab_size")
    rows = read_prompts(Path(work.file).expanduser(), vocabulary if isinstance(vocabulary, int) else None)
    texts = [row for row in rows if row.ids is None]
    if texts and experiment.rollout.side in ("vllm", "transformers"):
        check_tokenizer(model, texts[0].where)
    longest = max(len(row.ids) if row.ids is not None else 1 for row in rows)
    text = f", {len(texts)} of them text" if texts else ""
    return len(rows), longest, f"{work.file}: {len(rows)} prompts{text}"


def _positions(model: str) -> int | None:
    """Longest sequence by config.json; None where it names none."""
    limit = _config(model).get("max_position_embeddings")
    return limit if isinstance(limit, int) else None


def _stretched(model: str) -> bool:
    """Whether a RoPE factor makes more positions of those in config.json (how many, the engine knows)."""
    values = _config(model)
    return '"factor"' in json.dumps([values.get("rope_scaling"), values.get("rope_parameters")])


def _config(model: str) -> dict[str, Any]:
    """The text part of config.json."""
    values = read_config(model)
    text = values.get("text_config")
    return text if isinstance(text, dict) else values
