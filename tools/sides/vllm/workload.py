"""Prompts of a workload: random by seed, or from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from samebits.tools.schema.experiment import Workload


def prompts(workload: Workload, model: Path, vocabulary: int, special: set[int]) -> list[list[int]]:
    """Prompt token ids.

    Args:
        vocabulary: number of token ids of the model.
        special: ids never drawn for random prompts (end, begin, padding).

    Raises:
        UserError: unreadable file, text without a tokenizer, an id outside the vocabulary.
    """
    return (
        _from_file(Path(workload.file), model, vocabulary) if workload.file else _random(workload, vocabulary, special)
    )


def _random(workload: Workload, vocabulary: int, special: set[int]) -> list[list[int]]:
    shortest, longest = workload.prompt_tokens
    if not 1 <= shortest <= longest:
        raise UserError(
            f"[workload] prompt_tokens = {list(workload.prompt_tokens)}",
            "needs 1 <= shortest <= longest",
            "correct it in samebits.toml",
        )
    generator = torch.Generator().manual_seed(workload.seed)
    allowed = torch.tensor([token for token in range(vocabulary) if token not in special])
    lengths = torch.linspace(shortest, longest, workload.prompts).round().to(torch.int64).tolist()
    return [allowed[torch.randint(len(allowed), (length,), generator=generator)].tolist() for length in lengths]


def _from_file(path: Path, model: Path, vocabulary: int) -> list[list[int]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            str(path), f"cannot be read ({error})", "give a JSONL file of prompts in [workload] file"
        ) from error
    tokenizer: Any = None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        row = _row(line, where)
        if "prompt" in row and "prompt_ids" not in row:
            tokenizer = tokenizer or _tokenizer(model, where)
            row["prompt_ids"] = list(tokenizer(row["prompt"])["input_ids"])
        ids = row["prompt_ids"]
        if (
            not isinstance(ids, list)
            or not ids
            or not all(isinstance(token, int) and 0 <= token < vocabulary for token in ids)
        ):
            raise UserError(
                where, f"prompt_ids must be a non-empty list of token ids below {vocabulary}", "correct this row"
            )
        found.append(ids)
    if not found:
        raise UserError(str(path), "has no prompts", 'write one {"prompt_ids": [...]} or {"prompt": "text"} per line')
    return found


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(where, f"not JSON ({error})", "correct this row") from error
    if not isinstance(row, dict) or not ({"prompt", "prompt_ids"} & row.keys()):
        raise UserError(where, 'has neither "prompt_ids" nor "prompt"', "correct this row")
    return row


def _tokenizer(model: Path, where: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model, local_files_only=True)
    except Exception as error:  # the library raises many kinds for a missing tokenizer
        raise UserError(
            where,
            f"is text, and {model} has no tokenizer that loads",
            'give "prompt_ids" instead, or put the tokenizer files into the model folder',
        ) from error
