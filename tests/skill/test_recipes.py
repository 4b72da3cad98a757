"""What the recipes claim is what the support table records."""

from __future__ import annotations

from pathlib import Path

import pytest

from samebits.kernels.adapters.tables import support

RECIPES = Path(__file__).resolve().parents[2] / "skill/recipes"
CLASSES = {
    "qwen3.md": "Qwen3ForCausalLM",
    "qwen3-moe.md": "Qwen3MoeForCausalLM",
    "llama.md": "LlamaForCausalLM",
    "nemotron-h.md": "NemotronHForCausalLM",
    "deepseek-v4.md": "DeepseekV4ForCausalLM",
}


def claims(recipe: str) -> str:
    """ "exact" or "not yet", as the first lines of a recipe say."""
    head = " ".join(recipe.splitlines()[:4])
    assert ("Status: exact" in head) != ("not yet run" in head), head
    return "exact" if "Status: exact" in head else "not yet"


def agrees(recipe: str, family: str) -> bool:
    """A recipe says exact where the table does, in bf16 on the CPU engine, and only there."""
    found = support.row(family, "vllm", "cpu", "bfloat16").phases["decode"].status
    return (claims(recipe) == "exact") == (found == "exact")


@pytest.mark.parametrize("name", CLASSES)
def test_each_recipe_claims_what_was_recorded(name: str) -> None:
    text = (RECIPES / name).read_text()
    assert agrees(text, CLASSES[name])
    other = "NemotronHForCausalLM" if claims(text) == "exact" else "Qwen3ForCausalLM"
    assert not agrees(text, other), "a claim of the wrong family is seen"


def test_every_recipe_of_a_family_is_looked_at() -> None:
    assert {path.name for path in RECIPES.glob("*.md")} == {*CLASSES, "new-model.md"}
