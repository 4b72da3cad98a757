"""A rollout from the user's own JSONL or parquet rows: strictly checked, then stored as a Rollout artifact.

Legend: S sequences, N sampled tokens in all.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from samebits.tools.schema.errors import UserError
from samebits.tools.sides.protocol import RolloutData, Sequence

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOC = "see docs/bring-your-rollout.md"
FIELDS = {
    "prompt_ids",
    "sampled_ids",
    "logprobs",
    "mask",
    "temperature",
    "top_p",
    "top_k",
    "weight_version",
    "logprobs_mode",
}
NEEDED = ("prompt_ids", "sampled_ids", "logprobs")
LARGEST_ID = 2**31 - 1
LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127
SHOWN = 60
"""Characters of a value in a message."""


@dataclass(slots=True, frozen=True)
class Sampling:
    """What must be the same in every row of a file."""

    temperature: float
    top_p: float
    top_k: int
    weight_version: int
    logprobs_mode: str


def read_rows(path: Path) -> RolloutData:
    """Read and check a file of rollout rows.

    A row holds prompt_ids, sampled_ids (lists of whole numbers), logprobs (one number per sampled token, nats) and,
    when wanted, mask (0/1 or booleans, default all 1), temperature (default 1), top_p (1), top_k (0 or -1: off),
    weight_version (0), logprobs_mode ("raw" or "processed", default processed). Numbers are taken as float32; NaN and
    infinities are kept and counted as nonfinite.

    Raises:
        UserError: names the line (or row) and the field.
    """
    sequences: list[Sequence] = []
    logprobs: list[float] = []
    valid: list[bool] = []
    lines: list[int] = []
    first: tuple[Sampling, str] | None = None
    unit = f"{path} {'row' if path.suffix == '.parquet' else 'line'}"
    for number, row in _rows(path):
        where = f"{unit} {number}"
        lines.append(number)
        unknown = sorted(set(row) - FIELDS)
        if unknown:
            raise _bad(where, unknown[0], f"no such field; known are {', '.join(sorted(FIELDS))}")
        for name in NEEDED:
            if name not in row:
                raise _bad(where, name, "missing")
        prompt, sampled = _ids(where, row, "prompt_ids"), _ids(where, row, "sampled_ids")
        if not prompt:
            raise _bad(where, "prompt_ids", "empty: the first sampled token would have no prefix")
        sequences.append(Sequence(prompt, sampled))
        logprobs += _numbers(where, row, len(sampled))
        valid += _mask(where, row, len(sampled))
        sampling = _sampling(where, row)
        first = first or (sampling, where)
        _same(where, sampling, *first)
    if first is None:
        raise UserError(str(path), "no rows in it", f"write one row per sequence; {DOC}")
    known = first[0]
    return RolloutData(
        sequences,
        torch.tensor(logprobs, dtype=torch.float64).float(),
        torch.tensor(valid, dtype=torch.bool),
        known.temperature,
        known.top_p,
        known.top_k,
        known.logprobs_mode,
        known.weight_version,
        unit,
        lines,
    )


def _short(value: object) -> str:
    """As Python writes it, cut."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]}...({len(text)} characters)"


def _bad(where: str, name: str, reason: str) -> UserError:
    return UserError(f"{where}, field {name!r}", reason, f"correct it; {DOC}")


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each row with the number of its line (of its row, in parquet), from 1."""
    if not path.is_file():
        raise UserError(str(path), "no such file", f"give a .jsonl or .parquet file of rollout rows; {DOC}")
    if path.suffix == ".parquet":
        yield from _parquet(path)
        return
    if path.suffix not in (".jsonl", ".json", ".ndjson"):
        raise UserError(
            str(path), f"neither .jsonl nor .parquet ({path.suffix or 'no suffix'})", f"rename or convert it; {DOC}"
        )
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                where = f"{path} line {number}"
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise UserError(where, f"not JSON ({error})", f"write one JSON object per line; {DOC}") from error
                except RecursionError as error:
                    raise UserError(
                        where, "not a row (lists in lists without end)", f"write one JSON object per line; {DOC}"
                    ) from error
                if not isinstance(row, dict):
                    raise UserError(where, "not a JSON object", f"write one JSON object per line; {DOC}")
                yield number, row
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(str(path), f"cannot be read ({error})", f"give a UTF-8 JSONL file; {DOC}") from error


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(str(path), "reading parquet needs pyarrow", "pip install pyarrow, or write JSONL") from error
    try:
        file = pyarrow.parquet.ParquetFile(path)
        number = 0
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                number += 1
                # A null cell is a field that is not given.
                yield number, {key: value for key, value in row.items() if value is not None}
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(str(path), f"not a readable parquet file ({error})", f"write it again; {DOC}") from error


def _ids(where: str, row: dict[str, Any], name: str) -> list[int]:
    value = row[name]
    if not isinstance(value, list):
        raise _bad(where, name, f"a list of token ids is expected, not {type(value).__name__}")
    for k, token in enumerate(value):
        if type(token) is not int or not 0 <= token <= LARGEST_ID:
            raise _bad(where, name, f"entry {k} is {_short(token)}, not a token id")
    return value


def _numbers(where: str, row: dict[str, Any], count: int) -> list[float]:
    value = row["logprobs"]
    if not isinstance(value, list):
        raise _bad(where, "logprobs", f"a list of numbers is expected, not {type(value).__name__}")
    if len(value) != count:
        raise _bad(where, "logprobs", f"{len(value)} values for {count} sampled tokens")
    for k, number in enumerate(value):
        if type(number) not in (float, int):
            raise _bad(where, "logprobs", f"entry {k} is {_short(number)}, not a number")
        if LARGEST_FLOAT32 < abs(number) < math.inf:
            raise _bad(where, "logprobs", f"entry {k} is {_short(number)}, beyond every float32: logprobs are float32")
        if 0 < number < math.inf:
            raise _bad(
                where,
                "logprobs",
                f"entry {k} is {_short(number)}: a logprob is never above 0 (probabilities, or a negated loss?)",
            )
    return [float(number) for number in value]


def _mask(where: str, row: dict[str, Any], count: int) -> list[bool]:
    value = row.get("mask", [1] * count)
    if not isinstance(value, list) or len(value) != count:
        shape = f"{len(value)} entries" if isinstance(value, list) else type(value).__name__
        raise _bad(where, "mask", f"one 0 or 1 per sampled token is expected ({count}), not {shape}")
    for k, flag in enumerate(value):
        if not (isinstance(flag, bool) or (type(flag) is int and flag in (0, 1))):
            raise _bad(where, "mask", f"entry {k} is {_short(flag)}, neither 0 nor 1")
    return [bool(flag) for flag in value]


def _sampling(where: str, row: dict[str, Any]) -> Sampling:
    def number(name: str, default: float, low: float, high: float, open_low: bool = False) -> float:
        value = row.get(name, default)
        fine = type(value) in (int, float) and low <= value <= high and not (open_low and value == low)
        if not fine:
            raise _bad(
                where, name, f"{_short(value)} is not a number {'above' if open_low else 'from'} {low:g} to {high:g}"
            )
        return float(value)

    def whole(name: str) -> int:
        value = row.get(name, 0)
        if type(value) is not int or not -1 <= value < 2**63:
            raise _bad(where, name, f"{_short(value)} is not a whole number of at least 0 (and below 2**63)")
        return max(value, 0)

    mode = row.get("logprobs_mode", "processed")
    if mode not in ("raw", "processed"):
        raise _bad(where, "logprobs_mode", f'{_short(mode)} is neither "raw" nor "processed"')
    temperature = number("temperature", 1.0, 0.0, 100.0)
    return Sampling(
        temperature, number("top_p", 1.0, 0.0, 1.0, open_low=True), whole("top_k"), whole("weight_version"), mode
    )


def _same(where: str, here: Sampling, first: Sampling, there: str) -> None:
    for name in Sampling.__slots__:
        a, b = getattr(here, name), getattr(first, name)
        if a != b:
            raise _bad(
                where, name, f"{a!r}, but {b!r} in {there}: one measurement needs one value; split the file by {name}"
            )
