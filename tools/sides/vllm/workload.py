"""Prompts of a workload: random by seed, or from a file."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.schema.errors import UserError
from samebits.tools.sides.prompt_rows import check_ids, check_tokenizer, read_prompts

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
    tokenizer: Any = None
    found = []
    for row in read_prompts(path.expanduser(), vocabulary):
        if row.ids is not None:
            found.append(row.ids)
            continue
        tokenizer = tokenizer or _tokenizer(model, row.where)
        ids = list(tokenizer(row.text)["input_ids"])
        if not ids:
            raise UserError(
                row.where, f"is text of which the tokenizer in {model} makes no token", "give prompt_ids, or other text"
            )
        found.append(check_ids(ids, row.where, vocabulary))
    return found


def _tokenizer(model: Path, where: str) -> Any:
    check_tokenizer(model, where)
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model, local_files_only=True)
    except Exception as error:  # the library raises many kinds for a tokenizer it cannot make
        reason = shorten(f"{type(error).__name__}: {error}", 300, placeholder=" ...")
        raise UserError(
            where,
            f"is text, and the tokenizer in {model} does not load ({reason})",
            "give prompt_ids, or correct the tokenizer's files in the folder",
        ) from error
