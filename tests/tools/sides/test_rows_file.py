"""Rows of the user's own: read exactly, or refused by line and field; and the writers of docs/bring-your-rollout.md."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from samebits.tools.schema.errors import UserError
from samebits.tools.sides import rollout_store
from samebits.tools.sides.rows_file import read_rows
from samebits.tools.sides.scoring.torch_side import TorchSide

DOC = Path(__file__).parents[3] / "docs" / "bring-your-rollout.md"
GOOD: dict[str, Any] = {"prompt_ids": [3, 4], "sampled_ids": [5, 6], "logprobs": [-1.25, -0.1]}


def written(folder: Path, *rows: Any, name: str = "rows.jsonl") -> Path:
    path = folder / name
    path.write_text(
        "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n", encoding="utf-8"
    )
    return path


def test_rows_are_read_with_their_float32_bits_and_defaults(tmp_path: Path) -> None:
    value = torch.tensor([-2.3456789], dtype=torch.float32)
    data = read_rows(written(tmp_path, GOOD, "", GOOD | {"sampled_ids": [7], "logprobs": [float(value)], "mask": [0]}))
    assert [(s.prompt, s.sampled) for s in data.sequences] == [([3, 4], [5, 6]), ([3, 4], [7])]
    assert torch.equal(data.logprob_N[2:].view(torch.int32), value.view(torch.int32))
    assert data.valid_N.tolist() == [True, True, False]
    assert (data.temperature, data.top_p, data.top_k, data.weight_version, data.logprobs) == (
        1.0,
        1.0,
        0,
        0,
        "processed",
    )


def test_settings_are_read(tmp_path: Path) -> None:
    extra = {"temperature": 0.7, "top_p": 0.9, "top_k": -1, "weight_version": 4, "logprobs_mode": "raw"}
    data = read_rows(written(tmp_path, GOOD | extra))
    assert (data.temperature, data.top_p, data.top_k, data.weight_version, data.logprobs) == (0.7, 0.9, 0, 4, "raw")


def test_values_that_are_not_finite_are_kept(tmp_path: Path) -> None:
    data = read_rows(written(tmp_path, '{"prompt_ids": [1], "sampled_ids": [2, 3], "logprobs": [NaN, -Infinity]}'))
    assert math.isnan(float(data.logprob_N[0]))
    assert float(data.logprob_N[1]) == -math.inf


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"prompt_ids": []}, "prompt_ids", "empty"),
        ({"prompt_ids": "3 4"}, "prompt_ids", "a list"),
        ({"prompt_ids": [3, 4.0]}, "prompt_ids", "entry 1"),
        ({"prompt_ids": [True]}, "prompt_ids", "entry 0"),
        ({"sampled_ids": [5, -6]}, "sampled_ids", "entry 1"),
        ({"sampled_ids": [5, 2**40]}, "sampled_ids", "entry 1"),
        ({"logprobs": [-1.0]}, "logprobs", "1 values for 2"),
        ({"logprobs": [-1.0, None]}, "logprobs", "entry 1"),
        ({"logprobs": [-1.0, "-2"]}, "logprobs", "entry 1"),
        ({"logprobs": [-1.0, 0.4]}, "logprobs", "never above 0"),
        ({"logprobs": [-1.0, -1e300]}, "logprobs", "entry 1 is -1e+300, beyond every float32"),
        ({"logprobs": [-1.0, -3.41e38]}, "logprobs", "beyond every float32"),
        ({"logprobs": [-1.0, -(10**400)]}, "logprobs", "entry 1 is -10000"),
        ({"logprobs": [10**400, -1.0]}, "logprobs", "entry 0 is 10000"),
        ({"mask": [1]}, "mask", "1 entries"),
        ({"mask": [1, 2]}, "mask", "entry 1"),
        ({"temperature": -1}, "temperature", "-1"),
        ({"temperature": "1"}, "temperature", "'1'"),
        ({"temperature": 10**400}, "temperature", "(401 characters) is not a number from 0 to 100"),
        ({"temperature": math.nan}, "temperature", "nan is not a number from 0 to 100"),
        ({"top_p": 10**400}, "top_p", "(401 characters)"),
        ({"top_k": 2**63}, "top_k", "below 2**63"),
        ({"weight_version": 10**400}, "weight_version", "(401 characters)"),
        ({"top_p": 0}, "top_p", "0"),
        ({"top_p": 1.5}, "top_p", "1.5"),
        ({"top_k": 2.5}, "top_k", "2.5"),
        ({"weight_version": -4}, "weight_version", "-4"),
        ({"logprobs_mode": "cooked"}, "logprobs_mode", "cooked"),
        ({"logprob": [1]}, "logprob", "no such field"),
    ],
)
def test_a_bad_row_is_refused_by_line_and_field(
    change: dict[str, Any], field: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        read_rows(written(tmp_path, GOOD, GOOD | change))
    assert "line 2" in caught.value.thing
    assert f"field '{field}'" in caught.value.thing
    assert reason in caught.value.reason


@pytest.mark.parametrize("name", ["prompt_ids", "sampled_ids", "logprobs"])
def test_a_missing_field_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"line 1, field '{name}': missing"):
        read_rows(written(tmp_path, {key: value for key, value in GOOD.items() if key != name}))


@pytest.mark.parametrize("name", ["temperature", "top_p", "weight_version"])
def test_settings_that_change_inside_a_file_are_refused(name: str, tmp_path: Path) -> None:
    rows = [GOOD | {name: 1}, GOOD | {name: 1}, GOOD | {name: 0.5 if name != "weight_version" else 2}]
    with pytest.raises(UserError, match=f"line 3, field '{name}'.*line 1"):
        read_rows(written(tmp_path, *rows))


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("rows.jsonl", "", "no rows"),
        ("rows.jsonl", "{not json", "line 1: not JSON"),
        ("rows.jsonl", "[1]", "line 1: not a JSON object"),
        ("rows.jsonl", "[" * 200_000, "line 1: not a row"),
        ("rows.jsonl", '{"logprobs": [' + "9" * 5000 + "]}", "line 1: not JSON"),
        ("rows.csv", "a,b", "neither"),
        ("rows.parquet", "no parquet", "not a readable parquet"),
    ],
)
def test_a_file_that_is_no_rollout_is_refused(name: str, text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=reason):
        read_rows(written(tmp_path, text, name=name))


def test_a_message_does_not_repeat_a_whole_number_of_400_digits(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_rows(written(tmp_path, GOOD | {"temperature": 10**400}))
    assert len(caught.value.reason) < 120


def test_the_largest_float32_is_a_logprob(tmp_path: Path) -> None:
    least = torch.finfo(torch.float32).min
    assert float(read_rows(written(tmp_path, GOOD | {"logprobs": [least, -1.0]})).logprob_N[0]) == least


class Small(TorchSide):
    """A side of 8 positions and 16 tokens that is asked for its limits alone."""

    role, limit, vocabulary = "trainer", 8, 16

    def __init__(self) -> None: ...

    def describe(self) -> Any: ...

    def logits(self, batch: Any) -> Any: ...

    def save(self, path: Path) -> None: ...


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sampled_ids": [5, 300]}, "token id 300, the trainer side's vocabulary has 16"),
        ({"prompt_ids": [3] * 7}, "9 tokens, the trainer side's model takes 8"),
    ],
)
def test_a_row_that_the_model_cannot_take_is_named_by_its_line(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = written(tmp_path, GOOD, "", GOOD | change)
    rollout_store.write(tmp_path / "rollout", read_rows(path), side=str(path))
    with pytest.raises(UserError) as caught:
        Small().check(rollout_store.read(tmp_path / "rollout"))
    assert caught.value.thing == f"{path} line 3"
    assert caught.value.reason == reason
    assert caught.value.next_step == "correct the row, or take it out of the file"
    made = read_rows(path)
    made.lines = []
    with pytest.raises(UserError, match="sequence 1 of the rollout"):
        Small().check(made)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_rows(tmp_path / "absent.jsonl")


def test_parquet_rows_are_the_same_as_jsonl_and_errors_name_the_row(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [GOOD | {"temperature": 0.7, "mask": [1, 0]}, GOOD | {"temperature": 0.7, "mask": [1, 1]}]
    floats = pa.schema(
        [
            ("prompt_ids", pa.list_(pa.int64())),
            ("sampled_ids", pa.list_(pa.int64())),
            ("logprobs", pa.list_(pa.float32())),
            ("temperature", pa.float64()),
            ("mask", pa.list_(pa.int8())),
        ]
    )
    parquet.write_table(pa.Table.from_pylist(rows, schema=floats), tmp_path / "rows.parquet")
    a, b = read_rows(tmp_path / "rows.parquet"), read_rows(written(tmp_path, *rows))
    assert [(s.prompt, s.sampled) for s in a.sequences] == [(s.prompt, s.sampled) for s in b.sequences]
    assert torch.equal(a.logprob_N.view(torch.int32), b.logprob_N.view(torch.int32))
    assert torch.equal(a.valid_N, b.valid_N)
    parquet.write_table(
        pa.Table.from_pylist([rows[0], rows[1] | {"mask": [1]}], schema=floats), tmp_path / "bad.parquet"
    )
    with pytest.raises(UserError, match="row 2, field 'mask'"):
        read_rows(tmp_path / "bad.parquet")


def writer(name: str) -> Any:
    """A function of the document, as a reader would copy it."""
    blocks = re.findall(r"```python\n(.*?)```", DOC.read_text(encoding="utf-8"), re.DOTALL)
    scope: dict[str, Any] = {}
    exec(next(block for block in blocks if f"def {name}(" in block), scope)
    return scope[name]


def test_the_writer_for_vllm_gives_rows_that_can_be_read(tmp_path: Path) -> None:
    answer = SimpleNamespace(
        token_ids=(5, 6), logprobs=[{5: SimpleNamespace(logprob=-1.25)}, {6: SimpleNamespace(logprob=-0.1)}]
    )
    outputs = [SimpleNamespace(prompt_token_ids=[3, 4], outputs=[answer])]
    writer("write_vllm")(tmp_path / "rows.jsonl", outputs, SimpleNamespace(temperature=0.7, top_p=1.0, top_k=0))
    data = read_rows(tmp_path / "rows.jsonl")
    assert (data.sequences[0].sampled, data.logprob_N.tolist()[0], data.temperature) == ([5, 6], -1.25, 0.7)


def test_the_writer_for_trl_drops_padding(tmp_path: Path) -> None:
    batch = {
        "prompt_ids": torch.tensor([[0, 3, 4]]),
        "prompt_mask": torch.tensor([[0, 1, 1]]),
        "completion_ids": torch.tensor([[5, 6, 0]]),
        "completion_mask": torch.tensor([[1, 1, 0]]),
        "sampling_per_token_logps": torch.tensor([[-1.25, -0.5, 0.0]]),
    }
    writer("write_trl")(tmp_path / "rows.jsonl", batch, SimpleNamespace(temperature=1.0, top_p=1.0, top_k=None))
    data = read_rows(tmp_path / "rows.jsonl")
    assert (data.sequences[0].prompt, data.sequences[0].sampled, data.logprob_N.tolist()) == (
        [3, 4],
        [5, 6],
        [-1.25, -0.5],
    )


def test_the_writer_for_verl_drops_padding(tmp_path: Path) -> None:
    batch = {
        "prompts": torch.tensor([[0, 3, 4]]),
        "responses": torch.tensor([[5, 6, 0]]),
        "attention_mask": torch.tensor([[0, 1, 1, 1, 1, 0]]),
        "rollout_log_probs": torch.tensor([[-1.25, -0.5, 0.0]]),
    }

    class Batch(dict[str, torch.Tensor]):
        """Counts rows, as a TensorDict does."""

        def __len__(self) -> int:
            return 1

    config = SimpleNamespace(temperature=0.7, top_p=1.0, top_k=-1)
    writer("write_verl")(tmp_path / "rows.jsonl", SimpleNamespace(batch=Batch(batch)), config, version=3)
    data = read_rows(tmp_path / "rows.jsonl")
    assert (data.sequences[0].prompt, data.sequences[0].sampled, data.weight_version) == ([3, 4], [5, 6], 3)
