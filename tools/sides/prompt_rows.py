"""The rows of a prompts file, checked without a model. No torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from samebits.tools.schema.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)


@dataclass(slots=True, frozen=True)
class PromptRow:
    """One prompt: token ids, or text still to be tokenized."""

    where: str
    """FILE:LINE."""
    ids: list[int] | None
    text: str = ""


def read_prompts(path: Path, vocabulary: int | None) -> list[PromptRow]:
    """Every prompt of a JSONL file.

    Args:
        vocabulary: number of token ids of the model; None: not known here.

    Raises:
        UserError: unreadable file, a bad row (by its line), no prompt at all.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            str(path), f"cannot be read ({error})", "give a JSONL file of prompts in [workload] file"
        ) from error
    rows = [_row(line, f"{path}:{number}", vocabulary) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise UserError(str(path), "has no prompts", 'write one {"prompt_ids": [...]} or {"prompt": "text"} per line')
    return rows


def check_ids(ids: Any, where: str, vocabulary: int | None) -> list[int]:
    """The ids, when they are a prompt.

    Raises:
        UserError: no list, empty, or an id outside the vocabulary.
    """
    top = vocabulary if vocabulary is not None else 1 << 31
    if not isinstance(ids, list) or not ids or not all(type(token) is int and 0 <= token < top for token in ids):
        below = f" below {vocabulary}" if vocabulary is not None else ""
        raise UserError(where, f"prompt_ids must be a non-empty list of token ids{below}", "correct this row")
    return ids


def check_tokenizer(model: Path, where: str) -> None:
    """Whether the folder has a tokenizer at all: a library may otherwise make up an empty one.

    Raises:
        UserError: none of its files is there.
    """
    if not any((model / name).is_file() for name in TOKENIZER_FILES):
        raise UserError(
            where,
            f"is text, and there is no tokenizer in {model}",
            "give prompt_ids, or add the tokenizer's files to the folder",
        )


def _row(line: str, where: str, vocabulary: int | None) -> PromptRow:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(where, f"not JSON ({error})", "correct this row") from error
    if not isinstance(row, dict) or not ({"prompt", "prompt_ids"} & row.keys()):
        raise UserError(where, 'has neither "prompt_ids" nor "prompt"', "correct this row")
    if "prompt_ids" in row:
        return PromptRow(where, check_ids(row["prompt_ids"], where, vocabulary))
    if not isinstance(row["prompt"], str) or not row["prompt"]:
        raise UserError(where, "prompt must be a non-empty text", "correct this row")
    return PromptRow(where, None, row["prompt"])
