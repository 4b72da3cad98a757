"""What is said of an engine that does not start.

The errors are made here, in the words of vLLM 0.32 and transformers 5: no engine is started (test_side.py starts one).
"""

from __future__ import annotations

import pytest

from samebits.tools.schema.errors import UserError
from samebits.tools.sides.vllm.engine import refusal


@pytest.mark.parametrize(
    "text",
    [
        "Model architectures ['NobodysForCausalLM'] are not supported for now. Supported architectures: dict_keys([])",
        "The checkpoint you are trying to load has model type `nobodys` but Transformers does not recognize this "
        "architecture.",
    ],
)
def test_an_unknown_architecture_is_laid_to_config_json(text: str) -> None:
    said = refusal(ValueError(text), "/models/odd")
    assert "/models/odd/config.json" in said.next_step
    assert "[rollout]" not in said.next_step
    outer = RuntimeError("Engine core initialization failed.")
    outer.__cause__ = ValueError(text)
    assert "/models/odd/config.json" in refusal(outer, "/models/odd").next_step


def test_other_errors_are_laid_to_the_rollout_section() -> None:
    said = refusal(ValueError("No available memory for the cache blocks."), "/models/fine")
    assert "[rollout]" in said.next_step
    assert "config.json" not in said.next_step


def test_a_long_text_ends_at_a_word() -> None:
    word = "abcdefghi"
    outer = RuntimeError(" ".join([word] * 200))
    outer.__cause__ = ValueError(" ".join([word] * 200))
    said = refusal(outer, "/models/fine").reason
    assert len(said) < 1000
    assert set(said.replace("(", " ").replace(")", " ").split()) == {
        *("did", "not", "start:", "first", "cause:", "ValueError:"),
        word,
        "...",
    }


def test_a_refusal_inside_is_handed_on_as_it_is() -> None:
    inner = UserError("a thing", "a reason", "a step")
    outer = RuntimeError("outer")
    outer.__cause__ = inner
    assert refusal(outer, "/models/fine") is inner
