"""Prompts of a workload."""

from __future__ import annotations

from pathlib import Path

import pytest

from samebits.tools.schema.errors import UserError
from samebits.tools.schema.experiment import Workload
from samebits.tools.sides.vllm.workload import prompts

MODEL = Path("no-such-model")


def test_random_prompts_spread_their_lengths_and_avoid_special_ids() -> None:
    made = prompts(Workload(prompts=5, prompt_tokens=(2, 10)), MODEL, 8, {0, 1})
    assert [len(prompt) for prompt in made] == [2, 4, 6, 8, 10]
    assert {token for prompt in made for token in prompt} == {2, 3, 4, 5, 6, 7}
    assert made == prompts(Workload(prompts=5, prompt_tokens=(2, 10)), MODEL, 8, {0, 1})
    assert made != prompts(Workload(prompts=5, prompt_tokens=(2, 10), seed=1), MODEL, 8, {0, 1})


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"prompt_ids": [1, 2]}\nnot json', r"rows\.jsonl:2: not JSON"),
        ('{"ids": [1]}', "neither"),
        ('{"prompt_ids": [9]}', "below 8"),
        ('{"prompt_ids": []}', "non-empty"),
        ("\n", "has no prompts"),
        ('{"prompt": "text"}', r"there is no tokenizer in .*give prompt_ids, or add"),
        ('{"prompt": 3}', "non-empty text"),
        ("[1]", "neither"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, text: str, match: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=match):
        prompts(Workload(file=str(file)), tmp_path, 8, set())


def test_a_missing_file_and_impossible_lengths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        prompts(Workload(file=str(tmp_path / "none.jsonl")), MODEL, 8, set())
    with pytest.raises(UserError, match="shortest <= longest"):
        prompts(Workload(prompt_tokens=(5, 2)), MODEL, 8, set())
